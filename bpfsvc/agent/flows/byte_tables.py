"""Tables for ``bytes.translate``: what a byte of many entries becomes, all of them at once."""

from __future__ import annotations

from functools import cache


@cache
def equal(byte: int) -> bytes:
    """Return the table by which this byte becomes 1, and any other 0."""
    return bytes(256)[:byte] + b"\1" + bytes(255 - byte)


@cache
def other_than(byte: int) -> bytes:
    """Return the table by which this byte becomes 0, and any other 1."""
    return b"\1" * byte + b"\0" + b"\1" * (255 - byte)
