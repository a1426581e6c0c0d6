"""The table by which the programs advance a CRC32c over zero bytes.

See ``bpf/maps/crc32c_steps.h``. The polynomial is Castagnoli's, bits reversed, as SCTP has it
(RFC 9260, appendix A).
"""

from __future__ import annotations

import struct

_POLYNOMIAL = 0x82F63B78


def steps(count: int) -> list[bytes]:
    """Return the entries of map ``crc32c_steps``: entry n advances a CRC over 2^n zero bytes.

    An entry is a matrix over GF(2), 32 columns of 32 bits: what becomes of each bit of the CRC.
    """
    columns = [_byte(1 << bit) for bit in range(32)]
    entries = []
    for _ in range(count):
        entries.append(struct.pack("=32I", *columns))
        columns = [_multiply(columns, column) for column in columns]
    return entries


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
