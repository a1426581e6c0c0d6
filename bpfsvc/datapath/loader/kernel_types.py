"""Where the running kernel keeps fields of its own structs, by its description of types (BTF).

Types are found by their names, without a walk through some hundred thousand types: the agent needs
two fields of one struct. Numbers and layouts are from the kernel's ``linux/btf.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_KERNEL = Path("/sys/kernel/btf/vmlinux")

_HEADER = struct.Struct("=HBBIIIII")
"""Magic, version, flags, length of the header; offset and length of the types, of the names."""
_MAGIC = 0xEB9F

_TYPE, _MEMBER = struct.Struct("=III"), struct.Struct("=III")
"""Name, kind and number of members, size; and name, type, offset in bits."""

_STRUCT = 4


def socket_offsets(types: Path = _KERNEL) -> dict[str, int]:
    """Return the offsets in bytes of state and cookie in ``struct sock_common``.

    Empty if the kernel has no description of its types, or one that has another form.
    """
    try:
        members = _members(types.read_bytes(), b"sock_common", (b"skc_state", b"skc_cookie"))
    except (OSError, struct.error):
        return {}
    if members is None:
        return {}
    return {"socket_state": members[b"skc_state"], "socket_cookie": members[b"skc_cookie"]}


def _members(content: bytes, name: bytes, wanted: tuple[bytes, ...]) -> dict[bytes, int] | None:
    """Return the offsets of the wanted members of a struct; None if there is no such struct."""
    magic, _, _, header, types_at, types_size, names_at, names_size = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        return None
    types = content[header + types_at : header + types_at + types_size]
    names = content[header + names_at : header + names_at + names_size]
    for name_at in _places(names, b"\0" + name + b"\0"):
        for at in _places(types, struct.pack("=I", name_at + 1)):
            offsets = _offsets(types, names, at) if at % 4 == 0 else {}
            if all(member in offsets for member in wanted):
                return {member: offsets[member] for member in wanted}
    return None


def _places(content: bytes, wanted: bytes) -> Iterator[int]:
    at = content.find(wanted)
    while at >= 0:
        yield at
        at = content.find(wanted, at + 1)


def _offsets(types: bytes, names: bytes, at: int) -> dict[bytes, int]:
    """Return the offsets of the members of what may be a struct; bit fields are left out."""
    _, info, size = _TYPE.unpack_from(types, at)
    end = at + _TYPE.size + (info & 0xFFFF) * _MEMBER.size
    if info >> 24 & 0x1F != _STRUCT or end > len(types):
        return {}
    offsets = {}
    for name_at, _, where in _MEMBER.iter_unpack(types[at + _TYPE.size : end]):
        # Where any member is a bit field, the upper byte is the number of its bits.
        bits = where & 0xFFFFFF if info >> 31 else where
        if name_at >= len(names) or bits // 8 >= size:
            return {}
        if bits == where and not bits % 8:
            offsets[names[name_at : names.index(b"\0", name_at)]] = bits // 8
    return offsets
