"""The tables of Maglev, as ip_vs lays them out (the kernel's ``net/netfilter/ipvs/ip_vs_mh.c``)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from itertools import cycle, islice
from math import gcd
from struct import unpack

from bpfsvc.base.address import V4_PREFIX
from bpfsvc.services.entries import Place

Weighted = tuple[tuple[Place, int], ...]
"""Endpoints in the stable order of the service port, with their weights."""

Weights = tuple[int, ...]

MAGLEV_PLACES = {4093: 6, 8191: 6, 16381: 7, 32749: 7, 65521: 8, 131071: 8}
"""Lengths of the tables of ip_vs_mh from its default on -> bits that a weight may have there.

These are its CONFIG_IP_VS_MH_TAB_INDEX 12 to 17; the bits are half of that.
"""


def positive(weighted: Weighted) -> Weights:
    """Return the weights above 0."""
    return tuple(weight for _, weight in weighted if weight)


def divided(weights: Weights) -> Weights:
    """Return the weights without their common divisor."""
    common = gcd(*weights)
    return tuple(weight // common for weight in weights)


@lru_cache(maxsize=128)
def maglev_table(weighted: Weighted) -> bytes:
    """Return the table for endpoints with weights above 0: 100 places or more for each, while there
    are.

    Without a table, if one endpoint has them all.
    """
    if len(weighted) == 1:
        return b""
    wanted = min(100 * len(weighted), max(MAGLEV_PLACES))
    size = next(size for size in MAGLEV_PLACES if size >= wanted)
    turns = _turns(positive(weighted), MAGLEV_PLACES[size])
    keys = [(port + _folded(address)) & 0xFFFFFFFF for (address, port), _ in weighted]
    places = [_hsiphash(key, _FIRST_KEY) % size for key in keys]
    skips = [_hsiphash(key, _SECOND_KEY) % (size - 1) + 1 for key in keys]
    slots = (slot for slot, turn in enumerate(turns) for _ in range(turn))
    return _populated(size, islice(cycle(slots), size), places, skips)


_FIRST_KEY, _SECOND_KEY = 2654435761, 2654446892


def _turns(weights: Weights, bits: int) -> Weights:
    """Return how many places an endpoint takes when it is its turn: numbers of so many bits."""
    weights = divided(weights)
    shift = max(max(weights).bit_length() - bits, 0)
    return tuple(weight >> shift or 1 for weight in weights)


def _populated(size: int, slots: Iterable[int], places: list[int], skips: list[int]) -> bytes:
    """Return the table when each of the slots has taken the next place that it likes best.

    ``places`` are those where the slots begin; ``skips`` how far it is to the next ones.
    """
    table = array("H", [0]) * size
    taken = bytearray(size)
    for slot in slots:
        at = places[slot]
        if taken[at]:
            skip = skips[slot]
            while taken[at]:
                at = (at + skip) % size
            places[slot] = at
        taken[at] = 1
        table[at] = slot
    return table.tobytes()


def _folded(address: bytes) -> int:
    """Return an address as ip_vs hashes it: IPv6 as its four words, xored."""
    first, second, third, last = unpack("!4I", address)
    return int(last if address.startswith(V4_PREFIX) else first ^ second ^ third ^ last)


def _hsiphash(value: int, key: int) -> int:
    """Return the kernel's hsiphash_1u32 (lib/siphash.c), both halves of the key being the same.

    That is SipHash-1-3 of four bytes, and its lower half.
    """
    last = 4 << 56 | value
    v0, v1 = 0x736F6D6570736575 ^ key, 0x646F72616E646F6D ^ key
    v2, v3 = 0x6C7967656E657261 ^ key, 0x7465646279746573 ^ key ^ last
    v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    v0, v2 = v0 ^ last, v2 ^ 0xFF
    for _ in range(3):
        v0, v1, v2, v3 = _sip_round(v0, v1, v2, v3)
    return (v0 ^ v1 ^ v2 ^ v3) & 0xFFFFFFFF


_LOW = 0xFFFFFFFFFFFFFFFF


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
