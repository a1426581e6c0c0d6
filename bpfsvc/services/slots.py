"""Where the endpoints of a service port stand in the kernel: ranges of backend slots, and tables.

C stands in the first slots and L in the next, only where they are needed; equal sets share slots.
Where connections may spill over from C, all endpoints that serve stand before it.
A range holds the endpoints that may be chosen. Those on trial stand behind their range, and those
of weight 0 behind all ranges: these get no new connections, but those that they have go on and are
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import compress
from operator import not_
from socket import IPPROTO_SCTP, IPPROTO_TCP
from typing import NamedTuple

from bpfsvc.services.entries import (
    PLACE_BYTES,
    Backend,
    Place,
    PolicyWeights,
    ScheduleTable,
    Spill,
)
from bpfsvc.services.rules.endpoints import PortEndpoints
from bpfsvc.services.scheduling.in_force import USUAL_SCHEDULING, Scheduling
from bpfsvc.services.scheduling.quarantine import left_out
from bpfsvc.services.scheduling.schedulers import (
    NO_SLOT,
    RANDOM,
    Schedule,
    Scheduler,
    in_order,
    lay_out,
)
from bpfsvc.services.scheduling.slow_start import Shares, gradual
from bpfsvc.services.scheduling.spill import can_spill
from bpfsvc.services.scheduling.weights import USUAL

_MOST_TRIALS = 255
"""Endpoints on trial at once; the number is a byte."""


class Range(NamedTuple):
    """Backend slots ``first .. first + size - 1``, and the number of places in their table.

    ``refuses``: clients for whom nothing can be chosen are refused, though there are endpoints.
    ``trials``: the number of endpoints on trial, in the slots behind.
    """

    first: int
    size: int
    table: int = 0
    refuses: bool = False
    trials: int = 0


class Slots(NamedTuple):
    """The ranges of C and of L, whether anything is usable (H), and what leads to a slot.

    ``spills``: from C connections may spill over. ``counted``: those of each backend are counted.
    """

    cluster: Range
    local: Range
    anything: bool
    schedule: int = Schedule.RANDOM.value
    spills: bool = False
    counted: bool = False


class Placed(NamedTuple):
    """The backends in the order of their slots, the ranges, and what belongs to these.

    ``tables``: of each range that has one. ``weights``: of the slots, where loads are counted.
    ``spill``: to what connections spill over from C.
    """

    backends: tuple[Backend, ...]
    slots: Slots
    tables: tuple[ScheduleTable, ...] = ()
    weights: tuple[PolicyWeights, ...] = ()
    spill: Spill | None = None


def place(
    endpoints: PortEndpoints,
    scheduling: Scheduling,
    default: Scheduler,
    every: list[Backend],
    *,
    needs_cluster: bool,
    needs_local: bool,
) -> Placed:
    """Return the slots of the endpoints that the service port needs.

    ``default`` is the scheduler of Services that name none, ``every`` what C is without topology,
    where connections may spill over.
    """
    eligible = endpoints.eligible
    cluster = eligible.cluster if needs_cluster else []
    local = eligible.local if needs_local else []
    anything = bool(eligible.cluster)
    if scheduling is USUAL_SCHEDULING and default == RANDOM:
        return _unscheduled(cluster, local, anything)
    tcp = endpoints.key.protocol == IPPROTO_TCP
    by = _Rules(
        scheduling.scheduler or default,
        partial(_weight, endpoints, scheduling),
        scheduling.shares,
        scheduling.away if tcp else (),
        scheduling.trial if tcp else (),
        scheduling.zone_overload,
        inactive=endpoints.key.protocol not in (IPPROTO_TCP, IPPROTO_SCTP),
    )
    return _scheduled(every if needs_cluster else [], cluster, local, anything, by)


def usable_sets(
    endpoints: PortEndpoints,
    scheduling: Scheduling,
    every: list[Backend],
    *,
    needs_cluster: bool,
    needs_local: bool,
) -> set[frozenset[Place]]:
    """Return the sets of endpoints that clients of the service port share, but those of weight 0.

    Those in quarantine are among them. ``every``: as :func:`place` has it.
    """
    eligible = endpoints.eligible
    weight = partial(_weight, endpoints, scheduling)
    sets = [eligible.cluster, every or eligible.cluster] if needs_cluster else []
    sets += [eligible.local] * needs_local
    return {frozenset(one.place for one in each if weight(one)) for each in sets}


def _unscheduled(cluster: list[Backend], local: list[Backend], anything: bool) -> Placed:
    """Place endpoints of which any is as likely as another, as nearly all are."""
    if cluster == local:
        return Placed(tuple(cluster), _slots(len(cluster), 0, len(local), anything))
    return Placed((*cluster, *local), _slots(len(cluster), len(cluster), len(local), anything))


@lru_cache(maxsize=1024)
def _slots(of_cluster: int, first_local: int, of_local: int, anything: bool) -> Slots:
    """Return slots without tables; ten thousand Services share a few of these."""
    return Slots(Range(0, of_cluster), Range(first_local, of_local), anything)


class _Rules(NamedTuple):
    """By what a scheduler chooses among the endpoints of a service port.

    * ``away``, ``trial``: endpoints in quarantine, or on trial after it. They have weight 0, and
      their clients go elsewhere.
    * ``overload``: as ``Scheduling.zone_overload``.
    * ``inactive``: inactive connections count for that, too.
    """

    scheduler: Scheduler
    weight: Callable[[Backend], int]
    shares: Shares
    away: tuple[Place, ...]
    trial: tuple[Place, ...]
    overload: int
    inactive: bool


def _scheduled(
    every: list[Backend],
    cluster: list[Backend],
    local: list[Backend],
    anything: bool,
    by: _Rules,
) -> Placed:
    """Place endpoints among which a scheduler chooses by their weights.

    Where connections may spill over, those on trial of both sets stand behind C, near ones first:
    what is far is tried by a connection that spills over, and by no other.
    """
    sets = [cluster] if cluster == local else [cluster, local]
    may_spill = bool(every) and every != cluster
    if may_spill:
        sets.insert(0, every)
    backends: list[Backend] = []
    quiesced: dict[Backend, None] = {}
    ranges: list[Range] = []
    tables: list[ScheduleTable] = []
    candidates: list[PolicyWeights] = []
    schedule = Schedule.RANDOM
    on_trial: dict[Backend, None] = {}
    far_trials = 0
    for endpoints in sets:
        schedule, one = _arranged(endpoints, len(backends), by)
        quiesced |= dict.fromkeys(one.left)
        tried = one.tried
        quiesced |= dict.fromkeys(tried[_MOST_TRIALS:])
        if may_spill and endpoints is every:
            on_trial, tried = dict.fromkeys(tried), []
        elif may_spill and endpoints is cluster:
            tried = list(dict.fromkeys((*tried, *on_trial)))
            far_trials = len(tried[:_MOST_TRIALS]) - len(one.tried[:_MOST_TRIALS])
        tried = tried[:_MOST_TRIALS]
        ranges.append(one.range._replace(trials=len(tried)))
        if one.table:
            tables.append((len(backends), one.table))
        if one.weights:
            candidates.append((len(backends), one.weights))
        backends += one.chosen + tried
    spill = _spill(ranges[0], ranges[1], far_trials, backends, by) if may_spill else None
    if may_spill and not spill:
        return _scheduled([], cluster, local, anything, by)
    if spill and ranges[0].refuses:
        ranges[1] = ranges[1]._replace(refuses=True)
    near, spills = ranges[1 if spill else 0], spill is not None
    slots = Slots(near, ranges[-1], anything, schedule.value, spills, by.overload > 0)
    unused = [one for one in quiesced if one not in on_trial or one not in backends]
    return Placed((*backends, *unused), slots, tuple(tables), tuple(candidates), spill)


class _Arranged(NamedTuple):
    """A range, and what belongs to it: its table, and the weights of its slots.

    ``chosen``: the endpoints in these slots. ``tried``: those on trial. ``left``: all others.
    """

    range: Range
    table: bytes
    weights: tuple[int, ...]
    chosen: list[Backend]
    tried: list[Backend]
    left: list[Backend]


def _arranged(endpoints: list[Backend], first: int, by: _Rules) -> tuple[Schedule, _Arranged]:
    """Return what a set of endpoints becomes."""
    endpoints = in_order(by.scheduler, endpoints, by.weight)
    weighted = [(one, by.weight(one)) for one in endpoints]
    of_some = [one.place for one, of_one in weighted if of_one]
    gone = left_out(of_some, (*by.away, *by.trial))
    if gone:
        weighted = [(one, 0 if one.place in gone else of_one) for one, of_one in weighted]
    scheduler = _with_fallback(by.scheduler) if gone else by.scheduler
    scheduler, weights = gradual(scheduler, by.shares, weighted)
    chosen = list(compress(endpoints, weights))
    places = [one.place for one in endpoints]
    schedule, table, of_slots = lay_out(scheduler, list(zip(places, weights, strict=True)))
    if by.overload:
        of_slots = of_slots or tuple(filter(None, weights))
    refuses = bool(endpoints) and (not chosen or _has_gap(table) or schedule.may_refuse)
    found = Range(first, len(chosen), len(table) // PLACE_BYTES, refuses)
    on_trial = gone.intersection(by.trial)
    tried = [one for one in endpoints if one.place in on_trial]
    unused = compress(endpoints, map(not_, weights))
    left = [one for one in unused if one.place not in on_trial]
    return schedule, _Arranged(found, table, of_slots, chosen, tried, left)


def _spill(
    every: Range, near: Range, far_trials: int, backends: list[Backend], by: _Rules
) -> Spill | None:
    """Return to what connections spill over; None if they never can."""
    used = {one.place for one in backends[: near.first + near.size]}
    if not every.size or not near.size or not can_spill(by.overload, near.size, len(used)):
        return None
    first, size, table, *_ = every
    return first, size, table, near.first, near.size, far_trials, by.overload, int(by.inactive)


def _with_fallback(scheduler: Scheduler) -> Scheduler:
    """Return the same, by which clients of an endpoint of weight 0 go to another one.

    Of ``sh`` that is a flag of ip_vs; ``dh`` does likewise. The others do so anyway.
    """
    return scheduler._replace(flags=(*scheduler.flags, f"{scheduler.name}-fallback"))


def _weight(endpoints: PortEndpoints, scheduling: Scheduling, one: Backend) -> int:
    traits = endpoints.all[one.place]
    of_slice = endpoints.weights.get(one.place, USUAL)
    return scheduling.weights.of(one.address, traits.node, traits.zone, of_slice)


@lru_cache(maxsize=256)
def _has_gap(table: bytes) -> bool:
    """True if a place of the table has no slot."""
    return NO_SLOT in memoryview(table).cast("H")
