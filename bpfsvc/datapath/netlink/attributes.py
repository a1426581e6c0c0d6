"""Attributes of netlink messages, for the kinds of messages that are packed and read here."""

from __future__ import annotations

import struct

_HEAD = struct.Struct("=HH")
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF


def attribute(kind: int, data: bytes) -> bytes:
    """Return an attribute, padded."""
    return _HEAD.pack(_HEAD.size + len(data), kind) + data + bytes(-len(data) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return an attribute that consists of others."""
    return attribute(kind | _NESTED, b"".join(attributes))


def attributes(data: memoryview) -> dict[int, memoryview]:
    """Return attributes by type."""
    found, at = {}, 0
    while at + _HEAD.size <= len(data):
        size, kind = _HEAD.unpack_from(data, at)
        if size < _HEAD.size:
            break
        found[kind & _TYPE_MASK] = data[at + _HEAD.size : at + size]
        at += (size + 3) & ~3
    return found
