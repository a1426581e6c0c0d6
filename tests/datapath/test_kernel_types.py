"""Offsets of the kernel's own fields, from its description of types."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpfsvc.datapath.loader.kernel_types import socket_offsets

NAMES = b"\0int\0sock_common\0skc_state\0skc_cookie\0skc_reuse\0"


def member(name: bytes, bits: int, width: int = 0) -> bytes:
    return struct.pack("=III", NAMES.index(b"\0" + name + b"\0") + 1, 1, bits | width << 24)


def described(kind: int, *members: bytes, names: bytes = NAMES) -> bytes:
    name = names.index(b"\0sock_common\0") + 1 if b"sock_common" in names else 1
    types = struct.pack("=IIII", 1, 1 << 24, 4, 32)
    types += struct.pack("=III", name, kind << 24 | 1 << 31 | len(members), 136) + b"".join(members)
    head = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    return head + types + names


FIELDS = (member(b"skc_state", 18 * 8), member(b"skc_reuse", 19 * 8, 4), member(b"skc_cookie", 704))


def test_the_running_kernel_says_where_they_are() -> None:
    assert socket_offsets().keys() == {"socket_state", "socket_cookie"}


def test_bit_fields_beside_them_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(described(4, *FIELDS))
    assert socket_offsets(file) == {"socket_state": 18, "socket_cookie": 88}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no types",
        described(4, *FIELDS)[:-60],
        described(5, *FIELDS),
        described(4, FIELDS[0]),
        described(4, *FIELDS, names=NAMES.replace(b"sock_common", b"sock_others")),
    ],
    ids=["empty", "text", "cut", "no struct", "lacks a field", "another name"],
)
def test_what_is_not_as_expected_is_no_offset(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(content)
    assert socket_offsets(file) == {}


def test_a_kernel_without_types_has_no_offsets(tmp_path: Path) -> None:
    assert socket_offsets(tmp_path / "missing") == {}
