"""What the programs need to know of CRC32c: how to advance one over zero bytes.

See ``bpf/crc32c.h``. The polynomial is Castagnoli's, bits reversed, as SCTP has it (RFC 9260,
appendix A).
"""

from __future__ import annotations

import struct

_POLYNOMIAL = 0x82F63B78

STEPS = 16
"""CRC32C_STEPS of the C sources."""


def steps() -> list[bytes]:
    """Give the rows of map ``crc32c_steps``: row n advances a CRC over 2^n zero bytes.

    A row is a matrix over GF(2), 32 columns of 32 bits: what becomes of each bit of the CRC.
    """
    columns = [_byte(1 << bit) for bit in range(32)]
    rows = []
    for _ in range(STEPS):
        rows.append(struct.pack("=32I", *columns))
        columns = [_multiply(columns, column) for column in columns]
    return rows


def _byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


def _multiply(columns: list[int], crc: int) -> int:
    product = 0
    for bit, column in enumerate(columns):
        if crc >> bit & 1:
            product ^= column
    return product
