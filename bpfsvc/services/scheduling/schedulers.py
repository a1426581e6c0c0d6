"""How the backends of a service port are chosen: ip_vs's schedulers, laid out as tables.

The programs know kinds of numbers only (random, a counter, a hash) and take the place
``number % length`` of a table. Everything else that a scheduler does is in the table. The table is
made here, by the rules of the kernel's ``net/netfilter/ipvs/ip_vs_NAME.c``. Slot k is the k-th
endpoint with a weight above 0. Endpoints with weight 0 are quiesced: they get no new connections.

Schedulers that compare numbers of connections get weights in place of a table. The programs count
and compare (bpf/path/schedule/loads.h; locality.h for schedulers that lead an address to the same
backends again).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from itertools import count, cycle, islice
from typing import NamedTuple

from bpfsvc.services.entries import Backend, Place, Policies
from bpfsvc.services.scheduling.extra import COMPARED
from bpfsvc.services.scheduling.maglev import Weighted, Weights, divided, maglev_table, positive
from bpfsvc.services.scheduling.numbers import shortened


class Schedule(IntEnum):
    """The number that leads to a place of the table: ``enum schedule`` of bpf/maps/frontends.h."""

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
    LBLC = 13
    LBLCR = 14

    @property
    def counts(self) -> bool:
        """True if the connections of each backend are counted."""
        return self >= Schedule.LC

    @property
    def is_local(self) -> bool:
        """True if each address of a Service keeps to backends of its own."""
        return self >= Schedule.LBLC

    @property
    def may_refuse(self) -> bool:
        """True if clients are refused while every endpoint has too many connections."""
        return self is Schedule.OVF


_TEXTS = {
    "random": "random",
    "round": "rr",
    "source": "sh",
    "source_port": "sh,sh-port",
    "destination": "dh",
    "maglev": "mh",
    "maglev_port": "mh,mh-port",
}
"""The names of :class:`Schedule`, in lower case, as ip_vs has them; other names are the same."""


def scheduler_text(kind: str, places: int) -> str:
    """Return the scheduler that a name of :class:`Schedule`, in lower case, stands for.

    With a table, turns are ``wrr``; a random choice from one place is ``fo``. ``places``: the
    length of the longest table, 0 without one.
    """
    if kind == "round" and places:
        return "wrr"
    return "fo" if kind == "random" and places == 1 else _TEXTS.get(kind, kind)


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
    place is the slot. ``weights``: of the slots, where loads are compared.
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


def parse_scheduler(text: str) -> Scheduler:
    """Return the scheduler that ``name`` or ``name,flag,...`` stands for.

    Raises ``ValueError`` with one short line for an operator.
    """
    name, *flags = (part.strip() for part in text.split(","))
    kind = _KINDS.get(name)
    if kind is None:
        raise ValueError(f"scheduler {shortened(name)}: unknown; use one of {', '.join(_KINDS)}")
    for flag in flags:
        if flag not in kind.flags:
            known = " and ".join(kind.flags) if kind.flags else "no flags"
            raise ValueError(f"scheduler {name!r}: unknown flag {shortened(flag)}; it has {known}")
    return Scheduler(name, tuple(sorted(set(flags))))


def counts_connections(policies: Policies) -> bool:
    """True if the connections of each backend are counted, by the schedule or for spilling over."""
    return policies.counted or Schedule(policies.schedule).counts


def lay_out(scheduler: Scheduler, weighted: Sequence[tuple[Place, int]]) -> Layout:
    """Return the layout for endpoints in the stable order of the service port, with weights.

    Weights are 0..65535. If all of them are 0, there is no table.
    """
    kind = _KINDS[scheduler.name]
    by_port = f"{scheduler.name}-port" in scheduler.flags
    fallback = f"{scheduler.name}-fallback" in scheduler.flags
    table = kind.table(tuple(weighted), fallback) if any(pair[1] for pair in weighted) else b""
    weights = _candidates(kind.schedule, positive(tuple(weighted)))
    return Layout(kind.by_port if by_port else kind.schedule, table, weights)


def in_order(
    scheduler: Scheduler, endpoints: list[Backend], weight: Callable[[Backend], int]
) -> list[Backend]:
    """Return endpoints in the order of their slots.

    ``ovf`` takes the first endpoint that has room, so endpoints of the highest weight come first.
    """
    if _KINDS[scheduler.name].schedule is not Schedule.OVF:
        return endpoints
    return sorted(endpoints, key=lambda backend: -weight(backend))


def _candidates(schedule: Schedule, weights: Weights) -> Weights:
    """Return the weights by which loads are compared; nothing where none are."""
    if not schedule.counts:
        return ()
    return (1,) * len(weights) if schedule is Schedule.LC else weights


def _packed(slots: Iterable[int]) -> bytes:
    return array("H", slots).tobytes()


# -- Without a table, and tables of weights -------------------------------------------------------


def _in_turn(_weighted: Weighted, _fallback: bool) -> bytes:
    """Return no table: the weights are not looked at (ip_vs_rr.c)."""
    return b""


def _at_random(weighted: Weighted, _fallback: bool) -> bytes:
    """Return a table in which an endpoint has as many places as its weight."""
    return _blocks(_reduced(positive(weighted)))


def _first_of_all(weighted: Weighted, _fallback: bool) -> bytes:
    """Return a table of one place: the first endpoint of the highest weight (ip_vs_fo.c)."""
    weights = positive(weighted)
    return _packed([weights.index(max(weights))]) if len(weights) > 1 else b""


def _of_many(weighted: Weighted, fallback: bool) -> bytes:
    """Return the table from which two are drawn, where there are too many to compare all.

    ``ovf`` compares the endpoints of the highest weights.
    """
    return _at_random(weighted, fallback) if len(positive(weighted)) > COMPARED else b""


def _in_weighted_turn(weighted: Weighted, _fallback: bool) -> bytes:
    """Return one round of ip_vs_wrr.c."""
    return _round(_reduced(positive(weighted)))


def _reduced(weights: Weights) -> Weights:
    """Return the smallest weights of the same ratio.

    If their sum is above :data:`MAX_ROUND` they are scaled down to it: each is rounded to less than
    one place, and none to 0.
    """
    weights = divided(weights)
    total = sum(weights)
    if total <= MAX_ROUND:
        return weights
    room = MAX_ROUND - len(weights)
    return divided(tuple(max(weight * room // total, 1) for weight in weights))


@lru_cache(maxsize=64)
def _blocks(weights: Weights) -> bytes:
    if max(weights) == 1:
        return b""
    return _packed(slot for slot, weight in enumerate(weights) for _ in range(weight))


@lru_cache(maxsize=64)
def _round(weights: Weights) -> bytes:
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


def _by_source(weighted: Weighted, fallback: bool) -> bytes:
    """Return the buckets of ip_vs_sh.c: in a row as many as the weight."""
    return _buckets(tuple(weight for _, weight in weighted), fallback)


def _by_destination(weighted: Weighted, fallback: bool) -> bytes:
    """Return the buckets of ip_vs_dh.c: in turn, whatever the weights."""
    return _buckets(tuple(min(weight, 1) for _, weight in weighted), fallback)


@lru_cache(maxsize=256)
def _buckets(weights: Weights, fallback: bool) -> bytes:
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


def _by_maglev(weighted: Weighted, _fallback: bool) -> bytes:
    """Return the table of ip_vs_mh.c, if endpoints with weight 0 never had another one.

    These have no places, so nothing is left for ``mh-fallback`` to do. ip_vs has endpoints keep the
    places of the last weight above 0, which is not known here.
    """
    weighted = tuple(pair for pair in weighted if pair[1])
    return b"" if len(weighted) >= NO_SLOT else maglev_table(weighted)


# -- The names ------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """What a name means. ``by_port`` is the schedule with the flag ``NAME-port``."""

    schedule: Schedule
    table: Callable[[Weighted, bool], bytes]
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
    "lblc": _Kind(Schedule.LBLC, _of_many, Schedule.LBLC),
    "lblcr": _Kind(Schedule.LBLCR, _of_many, Schedule.LBLCR),
}
