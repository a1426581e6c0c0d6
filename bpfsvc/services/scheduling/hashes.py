"""The hashes of ip_vs's schedulers (bpf/path/schedule/schedule.h), for what is not a packet."""

from __future__ import annotations

from struct import unpack

from bpfsvc.base.address import V4_PREFIX

FIRST_KEY, SECOND_KEY = 2654435761, 2654446892
"""Of ip_vs_mh.c."""

_WORD = 0xFFFFFFFF
_LOW = 0xFFFFFFFFFFFFFFFF


def folded(address: bytes) -> int:
    """Return an address as ip_vs hashes it: IPv6 as its four words, xored."""
    first, second, third, last = unpack("!4I", address)
    return int(last if address.startswith(V4_PREFIX) else first ^ second ^ third ^ last)


def multiplicative_hash(value: int) -> int:
    """Return the bucket of ip_vs_sh.c and ip_vs_dh.c, which have 256."""
    return (value * 0x61C88647 & _WORD) >> 24


def hsiphash(value: int, key: int) -> int:
    """Return the kernel's hsiphash_1u32 (lib/siphash.c), both halves of the key being the same.

    That is SipHash-1-3 of four bytes, and its lower half.
    """
    last = 4 << 56 | value & _WORD
    v0, v1 = 0x736F6D6570736575 ^ key, 0x646F72616E646F6D ^ key
    v2, v3 = 0x6C7967656E657261 ^ key, 0x7465646279746573 ^ key ^ last
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v2 = v0 ^ last, v2 ^ 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return (v0 ^ v1 ^ v2 ^ v3) & _WORD


def _sip_round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _LOW
    v1 = (v1 << 13 & _LOW | v1 >> 51) ^ v0
    v0 = v0 << 32 & _LOW | v0 >> 32
    v2 = (v2 + v3) & _LOW
    v3 = (v3 << 16 & _LOW | v3 >> 48) ^ v2
    v0 = (v0 + v3) & _LOW
    v3 = (v3 << 21 & _LOW | v3 >> 43) ^ v0
    v2 = (v2 + v1) & _LOW
    v1 = (v1 << 17 & _LOW | v1 >> 47) ^ v2
    v2 = v2 << 32 & _LOW | v2 >> 32
    return v0, v1, v2, v3
