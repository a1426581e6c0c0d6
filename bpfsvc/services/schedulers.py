"""How the backends of a service port are chosen: ip_vs's schedulers, laid out as tables.

The programs know kinds of numbers only (a random one, a counter, a hash) and take the place
``number % length`` of a table. What a scheduler does beyond that stands in the table and is decided
here, by the rules of the kernel's ``net/netfilter/ipvs/ip_vs_NAME.c``. Slot k is the k-th endpoint
of those with a weight above 0. Endpoints with weight 0 are quiesced: nobody new is sent there.

Schedulers that compare numbers of connections get weights in place of a table; these numbers, and
the comparison, are the programs' (bpf/path/schedule_loads.h).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import count, cycle, islice
from math import gcd
from struct import unpack
from typing import NamedTuple

from bpfsvc.base.address import V4_PREFIX
from bpfsvc.services.entries import COMPARED, Backend, Place


class Schedule(IntEnum):
    """The number that leads to a place of the table, in the order of bpf/maps/frontends.h."""

    RANDOM = 0
    ROUND = 1
    SOURCE = 2
    SOURCE_PORT = 3
    DESTINATION = 4
    MAGLEV = 5
    MAGLEV_PORT = 6
    LC = 7
    WLC = 8
    SED = 9
    NQ = 10
    OVF = 11
    TWOS = 12

    @property
    def counts(self) -> bool:
        """True if the connections of each backend are counted."""
        return self >= Schedule.LC

    @property
    def may_refuse(self) -> bool:
        """True if clients are refused while every endpoint has too many connections."""
        return self is Schedule.OVF


class Scheduler(NamedTuple):
    """A scheduler as an operator names it. The flags are sorted, without duplicates."""

    name: str = "random"
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join((self.name, *self.flags))


RANDOM = Scheduler()


class Layout(NamedTuple):
    """What a scheduler becomes: the kind of number, and a table of 16-bit slot numbers.

    The numbers are in the machine's order, as the map has them. Without a table the number of the
    place is the slot. ``weights`` are those of the slots, where loads are compared.
    """

    schedule: Schedule
    table: bytes = b""
    weights: tuple[int, ...] = ()


NO_SLOT = 0xFFFF
"""In a table: the client is refused."""

MAX_ROUND = 16384
"""Places in a table of weights, at most."""

BUCKETS = 256
"""Places of ip_vs_sh and ip_vs_dh."""

MAGLEV_PLACES = {4093: 6, 8191: 6, 16381: 7, 32749: 7, 65521: 8, 131071: 8}
"""Lengths of the tables of ip_vs_mh from its default on -> bits that a weight may have there.

These are its CONFIG_IP_VS_MH_TAB_INDEX 12 to 17; the bits are half of that.
"""

MISSING = ("lblc", "lblcr")
"""Schedulers of ip_vs that are not there."""


_SHOWN = 40
"""Letters of an unknown name in an error: annotations may be long."""


def parse_scheduler(text: str) -> Scheduler:
    """Return the scheduler that ``name`` or ``name,flag,...`` stands for.

    Raises ``ValueError`` with one short line for an operator.
    """
    name, *flags = (part.strip() for part in text.split(","))
    kind = _KINDS.get(name)
    if kind is None:
        why = "is one of ip_vs that bpfsvc does not have" if name in MISSING else "unknown"
        raise ValueError(f"scheduler {name[:_SHOWN]!r}: {why}; use one of {', '.join(_KINDS)}")
    for flag in flags:
        if flag not in kind.flags:
            known = " and ".join(kind.flags) if kind.flags else "no flags"
            raise ValueError(f"scheduler {name!r}: unknown flag {flag[:_SHOWN]!r}; it has {known}")
    return Scheduler(name, tuple(sorted(set(flags))))


def lay_out(scheduler: Scheduler, weighted: Sequence[tuple[Place, int]]) -> Layout:
    """Return the layout for endpoints in the stable order of the service port, with weights.

    Weights are 0..65535. If all of them are 0, there is no table.
    """
    kind = _KINDS[scheduler.name]
    by_port = f"{scheduler.name}-port" in scheduler.flags
    fallback = f"{scheduler.name}-fallback" in scheduler.flags
    table = kind.table(tuple(weighted), fallback) if any(one[1] for one in weighted) else b""
    weights = _candidates(kind.schedule, _positive(tuple(weighted)))
    return Layout(kind.by_port if by_port else kind.schedule, table, weights)


def in_order(
    scheduler: Scheduler, endpoints: list[Backend], weight: Callable[[Backend], int]
) -> list[Backend]:
    """Return endpoints in the order of their slots.

    ``ovf`` takes the first one that has room, so those of the highest weight come first.
    """
    if _KINDS[scheduler.name].schedule is not Schedule.OVF:
        return endpoints
    return sorted(endpoints, key=lambda one: -weight(one))


def _candidates(schedule: Schedule, weights: _Weights) -> _Weights:
    """Return the weights by which loads are compared; nothing where none are."""
    if not schedule.counts:
        return ()
    return (1,) * len(weights) if schedule is Schedule.LC else weights


_Weighted = tuple[tuple[Place, int], ...]
_Weights = tuple[int, ...]


def _packed(slots: Iterable[int]) -> bytes:
    return array("H", slots).tobytes()


def _positive(weighted: _Weighted) -> _Weights:
    return tuple(weight for _, weight in weighted if weight)


# -- Without a table, and tables of weights -------------------------------------------------------


def _in_turn(_weighted: _Weighted, _fallback: bool) -> bytes:
    """Return no table: the weights are not looked at (ip_vs_rr.c)."""
    return b""


def _at_random(weighted: _Weighted, _fallback: bool) -> bytes:
    """Return a table in which an endpoint has as many places as its weight."""
    return _blocks(_reduced(_positive(weighted)))


def _first_of_all(weighted: _Weighted, _fallback: bool) -> bytes:
    """Return a table of one place: the first endpoint of the highest weight (ip_vs_fo.c)."""
    weights = _positive(weighted)
    return _packed([weights.index(max(weights))]) if len(weights) > 1 else b""


def _of_many(weighted: _Weighted, _fallback: bool) -> bytes:
    """Return the table from which two are drawn, where there are too many to compare all.

    ``ovf`` compares those of the highest weights.
    """
    return _at_random(weighted, False) if len(_positive(weighted)) > COMPARED else b""


def _in_weighted_turn(weighted: _Weighted, _fallback: bool) -> bytes:
    """Return one round of ip_vs_wrr.c."""
    return _round(_reduced(_positive(weighted)))


def _reduced(weights: _Weights) -> _Weights:
    """Return the smallest weights of the same ratio.

    If their sum is above :data:`MAX_ROUND` they are scaled down to it: each is rounded to less than
    one place, and none to 0.
    """
    weights = _divided(weights)
    total = sum(weights)
    if total <= MAX_ROUND:
        return weights
    room = max(MAX_ROUND - len(weights), 0)
    return _divided(tuple(max(weight * room // total, 1) for weight in weights))


def _divided(weights: _Weights) -> _Weights:
    common = gcd(*weights)
    return tuple(weight // common for weight in weights)


@lru_cache(maxsize=256)
def _blocks(weights: _Weights) -> bytes:
    if max(weights) == 1:
        return b""
    return _packed(slot for slot, weight in enumerate(weights) for _ in range(weight))


@lru_cache(maxsize=256)
def _round(weights: _Weights) -> bytes:
    """Return who has a turn: first those with the highest weight, then those with one less, too.

    The last pass is of all. The passes are made from the last to the first, so that each needs to
    look only at the members of the one after it.
    """
    if max(weights) == 1:
        return b""
    passes: list[Sequence[int]] = [range(len(weights))]
    for threshold in range(2, max(weights) + 1):
        passes.append([slot for slot in passes[-1] if weights[slot] >= threshold])
    return _packed(slot for members in reversed(passes) for slot in members)


# -- Tables of buckets ----------------------------------------------------------------------------


def _by_source(weighted: _Weighted, fallback: bool) -> bytes:
    """Return the buckets of ip_vs_sh.c: in a row as many as the weight."""
    return _buckets(tuple(weight for _, weight in weighted), fallback)


def _by_destination(weighted: _Weighted, _fallback: bool) -> bytes:
    """Return the buckets of ip_vs_dh.c: in turn, whatever the weights."""
    return _buckets(tuple(min(weight, 1) for _, weight in weighted), fallback=False)


@lru_cache(maxsize=256)
def _buckets(weights: _Weights, fallback: bool) -> bytes:
    """Return the slots of the buckets; without a table, if they are dealt in turn or all to one.

    A quiesced endpoint has a bucket where one of weight 1 would have it.
    """
    if set(weights) == {1} or len(weights) == 1:
        return b""
    numbers = count()
    runs = [(next(numbers) if weight else NO_SLOT, max(weight, 1)) for weight in weights]
    dealt = (slot for slot, length in runs for _ in range(length))
    buckets = list(islice(cycle(dealt), BUCKETS))
    if fallback:
        return _packed(_instead(buckets, number) for number in range(BUCKETS))
    return _packed(buckets)


def _instead(buckets: list[int], number: int) -> int:
    """Return the slot of a bucket; if it has none, that which ``sh-fallback`` finds.

    ip_vs adds offsets to the hash, and the first offset is the hash itself: the search begins at
    twice the number.
    """
    if buckets[number] != NO_SLOT:
        return buckets[number]
    others = (buckets[(2 * number + offset) % BUCKETS] for offset in range(BUCKETS))
    return next((slot for slot in others if slot != NO_SLOT), NO_SLOT)


# -- Maglev ---------------------------------------------------------------------------------------


def _by_maglev(weighted: _Weighted, _fallback: bool) -> bytes:
    """Return the table of ip_vs_mh.c, if endpoints with weight 0 never had another one.

    These have no places, so nothing is left for ``mh-fallback`` to do. ip_vs has endpoints keep the
    places of the last weight above 0, which is not known here.
    """
    return _maglev(tuple(one for one in weighted if one[1]))


@lru_cache(maxsize=128)
def _maglev(weighted: _Weighted) -> bytes:
    """Return the table for endpoints with weights: 100 places or more for each, while there are.

    Without a table, if one endpoint has them all or there are more than slot numbers.
    """
    if len(weighted) == 1 or len(weighted) >= NO_SLOT:
        return b""
    wanted = min(100 * len(weighted), max(MAGLEV_PLACES))
    size = next(size for size in MAGLEV_PLACES if size >= wanted)
    turns = _turns(_positive(weighted), MAGLEV_PLACES[size])
    keys = [(port + _folded(address)) & 0xFFFFFFFF for (address, port), _ in weighted]
    places = [_hsiphash(key, _FIRST_KEY) % size for key in keys]
    skips = [_hsiphash(key, _SECOND_KEY) % (size - 1) + 1 for key in keys]
    slots = (slot for slot, turn in enumerate(turns) for _ in range(turn))
    return _populated(size, islice(cycle(slots), size), places, skips)


_FIRST_KEY, _SECOND_KEY = 2654435761, 2654446892


def _turns(weights: _Weights, bits: int) -> _Weights:
    """Return how many places an endpoint takes when it is its turn: numbers of so many bits."""
    weights = _divided(weights)
    shift = max(max(weights).bit_length() - bits, 0)
    return tuple(weight >> shift or 1 for weight in weights)


def _populated(size: int, slots: Iterable[int], places: list[int], skips: list[int]) -> bytes:
    """Return the table when each of the slots has taken the next place that it likes best.

    ``places`` are those where the slots begin; ``skips`` how far it is to the next ones.
    """
    table = array("H", [NO_SLOT]) * size
    taken = bytearray(size)
    for slot in slots:
        place = places[slot]
        if taken[place]:
            skip = skips[slot]
            while taken[place]:
                place = (place + skip) % size
            places[slot] = place
        taken[place] = 1
        table[place] = slot
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


# -- The names ------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """What a name means. ``by_port`` is the schedule with the flag ``NAME-port``."""

    schedule: Schedule
    table: Callable[[_Weighted, bool], bytes]
    by_port: Schedule
    flags: tuple[str, ...] = ()


_KINDS = {
    "random": _Kind(Schedule.RANDOM, _at_random, Schedule.RANDOM),
    "rr": _Kind(Schedule.ROUND, _in_turn, Schedule.ROUND),
    "wrr": _Kind(Schedule.ROUND, _in_weighted_turn, Schedule.ROUND),
    "sh": _Kind(Schedule.SOURCE, _by_source, Schedule.SOURCE_PORT, ("sh-fallback", "sh-port")),
    "dh": _Kind(Schedule.DESTINATION, _by_destination, Schedule.DESTINATION),
    "mh": _Kind(Schedule.MAGLEV, _by_maglev, Schedule.MAGLEV_PORT, ("mh-fallback", "mh-port")),
    "lc": _Kind(Schedule.LC, _in_turn, Schedule.LC),
    "wlc": _Kind(Schedule.WLC, _of_many, Schedule.WLC),
    "sed": _Kind(Schedule.SED, _of_many, Schedule.SED),
    "nq": _Kind(Schedule.NQ, _of_many, Schedule.NQ),
    "fo": _Kind(Schedule.RANDOM, _first_of_all, Schedule.RANDOM),
    "ovf": _Kind(Schedule.OVF, _in_turn, Schedule.OVF),
    "twos": _Kind(Schedule.TWOS, _at_random, Schedule.TWOS),
}
