"""Where the running kernel keeps fields of its own structs, by its description of types (BTF).

Types are found by their names. Only what is asked for seldom takes a walk through all of them, some
hundred thousand in a tenth of a second. Numbers and layouts are from the kernel's ``linux/btf.h``.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

_KERNEL = Path("/sys/kernel/btf/vmlinux")

_HEADER = struct.Struct("=HBBIIIII")
"""Magic, version, flags, length of the header; offset and length of the types, of the names."""
_MAGIC = 0xEB9F

_TYPE, _MEMBER = struct.Struct("=III"), struct.Struct("=III")
"""Name, kind and number of members, size; and name, type, offset in bits."""

_STRUCT, _UNION, _ENUM = 4, 5, 6

_FAMILY_AT = 16
"""Behind the addresses of IPv4 and the ports: programs read these in one piece."""


def socket_offsets(types: Path = _KERNEL) -> dict[str, int]:
    """Return the offsets in bytes of fields of ``struct sock_common``.

    ``socket_state``, ``socket_cookie``, and ``socket_v6``: the addresses of IPv6; 0 if the kernel
    has none. Empty if the kernel has no description of its types, or one that has another form.
    """
    wanted = {b"skc_family", b"skc_state", b"skc_cookie"}
    try:
        content = types.read_bytes()
        members = _members(content, b"sock_common", wanted | {b"skc_v6_daddr"}) or _members(
            content, b"sock_common", wanted
        )
    except (OSError, struct.error):
        return {}
    if members is None or members[b"skc_family"] != _FAMILY_AT:
        return {}
    return {
        "socket_state": members[b"skc_state"],
        "socket_cookie": members[b"skc_cookie"],
        "socket_v6": members.get(b"skc_v6_daddr", 0),
    }


_REASON = "SKB_DROP_REASON_"
_REASONS = b"skb_drop_reason"

_ENUMERATOR = struct.Struct("=II")
"""Name, value."""

_MORE = {1: 4, 3: 12, 14: 4, 17: 4}
_MORE_EACH = {_STRUCT: 12, _UNION: 12, _ENUM: 8, 13: 8, 15: 12, 19: 12}
"""Bytes behind a type of a kind: once, and for each member."""


class DropTypes(NamedTuple):
    """What it takes to understand a dropped packet.

    * ``head``, ``network_header``, ``socket``: offsets in ``struct sk_buff``.
    * ``reasons``: names of ``enum skb_drop_reason`` by number, without their common begin.
    """

    head: int
    network_header: int
    socket: int
    reasons: dict[int, str]


def has_drop_reasons(types: Path = _KERNEL) -> bool:
    """True if the kernel describes reasons of drops. Its tracepoint tells them since then."""
    try:
        content = types.read_bytes()
    except OSError:
        return False
    return b"\0" + _REASONS + b"\0" in content


def missing_for_drops(types: Path = _KERNEL) -> str:
    """Return what the kernel lacks, where :func:`drop_types` knows nothing."""
    if not types.exists():
        return "the kernel's own types (CONFIG_DEBUG_INFO_BTF)"
    if not has_drop_reasons(types):
        return "reasons of dropped packets (Linux 5.17)"
    return "a description of struct sk_buff that bpfsvc can read"


def drop_types(types: Path = _KERNEL) -> DropTypes | None:
    """Return what the kernel says of dropped packets; None if it does not say all of it."""
    try:
        described = _Types(types.read_bytes())
        at = described.find(b"sk_buff", _STRUCT)
        fields = described.all_offsets(at) if at else {}
        at = described.find(_REASONS, _ENUM)
        reasons = described.enumerators(at) if at else {}
        return DropTypes(fields[b"head"], fields[b"network_header"], fields[b"sk"], reasons)
    except (OSError, struct.error, KeyError, ValueError, IndexError):
        return None


class _Types:
    """All types of a description. ``ValueError``, ``struct.error`` if it has another form."""

    def __init__(self, content: bytes) -> None:
        magic, _, _, header, at, size, names_at, names_size = _HEADER.unpack_from(content)
        if magic != _MAGIC:
            raise ValueError("no description of types")
        self._types = content[header + at : header + at + size]
        self._names = content[header + names_at : header + names_at + names_size]
        self._places = array("I", [0])
        """Where a type begins, by its number; number 0 is no type."""
        at = 0
        while at < len(self._types):
            self._places.append(at)
            _, info, _ = _TYPE.unpack_from(self._types, at)
            kind = info >> 24 & 0x1F
            at += _TYPE.size + _MORE.get(kind, 0) + _MORE_EACH.get(kind, 0) * (info & 0xFFFF)

    def find(self, name: bytes, kind: int) -> int | None:
        """Return where the first type of a name and kind begins; None if there is none."""
        for at in self._places[1:]:
            name_at, info, _ = _TYPE.unpack_from(self._types, at)
            if info >> 24 & 0x1F == kind and self._name(name_at) == name:
                return at
        return None

    def all_offsets(self, at: int) -> dict[bytes, int]:
        """Return the offsets in bytes of members, with those of structs without a name in it."""
        _, info, _ = _TYPE.unpack_from(self._types, at)
        begin = at + _TYPE.size
        end = begin + (info & 0xFFFF) * _MEMBER.size
        offsets: dict[bytes, int] = {}
        for name_at, number, where in _MEMBER.iter_unpack(self._types[begin:end]):
            # Where any member is a bit field, the upper byte is the number of its bits.
            offset = (where & 0xFFFFFF if info >> 31 else where) // 8
            if name_at:
                offsets[self._name(name_at)] = offset
                continue
            inner = self._places[number]
            kind = _TYPE.unpack_from(self._types, inner)[1] >> 24 & 0x1F
            if kind in (_STRUCT, _UNION):
                inside = self.all_offsets(inner)
                offsets |= {name: offset + more for name, more in inside.items()}
        return offsets

    def enumerators(self, at: int) -> dict[int, str]:
        """Return the names of an enum's constants, by their values."""
        _, info, _ = _TYPE.unpack_from(self._types, at)
        begin = at + _TYPE.size
        end = begin + (info & 0xFFFF) * _ENUMERATOR.size
        return {
            value: self._name(name_at).decode().removeprefix(_REASON)
            for name_at, value in _ENUMERATOR.iter_unpack(self._types[begin:end])
        }

    def _name(self, at: int) -> bytes:
        return self._names[at : self._names.index(b"\0", at)]


def _members(content: bytes, name: bytes, wanted: Collection[bytes]) -> dict[bytes, int] | None:
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
