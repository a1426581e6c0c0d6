"""Offsets of the kernel's own fields, from its description of types."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bpfsvc.datapath.loader.kernel_types import (
    drop_types,
    has_drop_reasons,
    missing_for_drops,
    socket_offsets,
)

NAMES = b"\0int\0sock_common\0skc_state\0skc_cookie\0skc_reuse\0skc_family\0skc_v6_daddr\0"


def member(name: bytes, bits: int, width: int = 0) -> bytes:
    return struct.pack("=III", NAMES.index(b"\0" + name + b"\0") + 1, 1, bits | width << 24)


def described(kind: int, *members: bytes, names: bytes = NAMES) -> bytes:
    name = names.index(b"\0sock_common\0") + 1 if b"sock_common" in names else 1
    types = struct.pack("=IIII", 1, 1 << 24, 4, 32)
    types += struct.pack("=III", name, kind << 24 | 1 << 31 | len(members), 136) + b"".join(members)
    head = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    return head + types + names


FIELDS = (
    member(b"skc_family", 16 * 8),
    member(b"skc_state", 18 * 8),
    member(b"skc_reuse", 19 * 8, 4),
    member(b"skc_cookie", 704),
)


def test_the_running_kernel_says_where_they_are() -> None:
    assert socket_offsets().keys() == {"socket_state", "socket_cookie", "socket_v6"}
    assert all(socket_offsets().values())


def test_bit_fields_beside_them_do_not_matter(tmp_path: Path) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(described(4, *FIELDS))
    assert socket_offsets(file) == {"socket_state": 18, "socket_cookie": 88, "socket_v6": 0}


def test_a_kernel_with_ipv6_says_where_its_addresses_are(tmp_path: Path) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(described(4, *FIELDS, member(b"skc_v6_daddr", 56 * 8)))
    assert socket_offsets(file)["socket_v6"] == 56


def test_sockets_that_begin_in_another_form_have_no_offsets(tmp_path: Path) -> None:
    """Programs read the addresses of IPv4 and the ports before the family without being told."""
    file = tmp_path / "vmlinux"
    file.write_bytes(described(4, member(b"skc_family", 24 * 8), *FIELDS[1:]))
    assert socket_offsets(file) == {}


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


DROP_NAMES = b"\0sk_buff\0sk\0network_header\0head\0skb_drop_reason\0SKB_DROP_REASON_NO_SOCKET\0"


def name_of(text: bytes) -> int:
    return DROP_NAMES.index(b"\0" + text + b"\0") + 1


def drops_described(*, reasons: bool) -> bytes:
    """``struct sk_buff`` with a union, and in that a struct, both without a name."""
    group = struct.pack("=III", 0, 4 << 24 | 1, 8)
    group += struct.pack("=III", name_of(b"network_header"), 0, 4 * 8)
    union = struct.pack("=III", 0, 5 << 24 | 1, 8) + struct.pack("=III", 0, 1, 0)
    buffer = struct.pack("=III", name_of(b"sk_buff"), 4 << 24 | 3, 64)
    buffer += struct.pack("=III", name_of(b"sk"), 0, 24 * 8)
    buffer += struct.pack("=III", 0, 2, 32 * 8)
    buffer += struct.pack("=III", name_of(b"head"), 0, 48 * 8)
    types = group + union + buffer
    names = DROP_NAMES
    if reasons:
        types += struct.pack("=III", name_of(b"skb_drop_reason"), 6 << 24 | 1, 4)
        types += struct.pack("=II", name_of(b"SKB_DROP_REASON_NO_SOCKET"), 3)
    else:
        names = names.replace(b"drop_reason", b"drip_reason")
    head = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    return head + types + names


def test_fields_of_packets_are_found_in_structs_without_a_name(tmp_path: Path) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(drops_described(reasons=True))
    assert drop_types(file) == (48, 36, 24, {3: "NO_SOCKET"})
    assert has_drop_reasons(file)


def test_a_kernel_without_reasons_says_so(tmp_path: Path) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(drops_described(reasons=False))
    assert not has_drop_reasons(file)
    assert missing_for_drops(file) == "reasons of dropped packets (Linux 5.17)"


def test_a_kernel_without_types_tells_no_drops(tmp_path: Path) -> None:
    file = tmp_path / "missing"
    assert drop_types(file) is None
    assert not has_drop_reasons(file)
    assert missing_for_drops(file) == "the kernel's own types (CONFIG_DEBUG_INFO_BTF)"


@pytest.mark.parametrize("cut", [0, 20, 70, 130])
def test_a_description_that_is_cut_is_none(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "vmlinux"
    file.write_bytes(drops_described(reasons=True)[:cut])
    assert drop_types(file) is None


def test_the_running_kernel_names_its_reasons() -> None:
    types = drop_types()
    assert types
    assert {"NETFILTER_DROP", "SOCKET_RCVBUFF", "IP_RPFILTER"} <= set(types.reasons.values())
