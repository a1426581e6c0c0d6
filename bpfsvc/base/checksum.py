"""The internet checksum, for packets that are made here."""

from __future__ import annotations

import struct


def checksum(data: bytes | bytearray) -> int:
    """Return the internet checksum of an even number of bytes (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
