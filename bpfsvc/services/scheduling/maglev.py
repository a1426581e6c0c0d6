"""The tables of Maglev, as ip_vs lays them out (the kernel's ``net/netfilter/ipvs/ip_vs_mh.c``)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from itertools import cycle, islice
from math import gcd

from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.hashes import FIRST_KEY, SECOND_KEY, folded, hsiphash

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


@lru_cache(maxsize=8)
def maglev_table(weighted: Weighted) -> bytes:
    """Return the table for endpoints with weights above 0: 100 places or more for each, while there
    are.

    Without a table, if one endpoint has them all. The last tables are remembered: several policies
    of a Service have the same endpoints. A table takes up to 0.26 MB.
    """
    if len(weighted) == 1:
        return b""
    wanted = min(100 * len(weighted), max(MAGLEV_PLACES))
    size = next(size for size in MAGLEV_PLACES if size >= wanted)
    turns = _turns(positive(weighted), MAGLEV_PLACES[size])
    keys = [(port + folded(address)) & 0xFFFFFFFF for (address, port), _ in weighted]
    places = [hsiphash(key, FIRST_KEY) % size for key in keys]
    skips = [hsiphash(key, SECOND_KEY) % (size - 1) + 1 for key in keys]
    slots = (slot for slot, turn in enumerate(turns) for _ in range(turn))
    return _populated(size, islice(cycle(slots), size), places, skips)


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
