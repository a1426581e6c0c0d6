"""Where the endpoints of a service port stand in the kernel: ranges of backend slots, and tables.

C stands in the first slots and L in the next, only where they are needed; equal sets share slots.
A range holds the endpoints that may be chosen. Those on trial stand behind their range, and those
of weight 0 behind all ranges: nobody new comes to these, but their connections go on and are
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import compress
from operator import not_
from socket import IPPROTO_TCP
from typing import NamedTuple

from bpfsvc.services.endpoints import PortEndpoints
from bpfsvc.services.entries import PLACE_BYTES, Backend, Place, PolicyWeights, ScheduleTable
from bpfsvc.services.quarantine import left_out
from bpfsvc.services.schedulers import NO_SLOT, RANDOM, Schedule, Scheduler, in_order, lay_out
from bpfsvc.services.scheduling import USUAL_SCHEDULING, Scheduling
from bpfsvc.services.slow_start import gradual
from bpfsvc.services.weights import USUAL

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
    """The ranges of C and of L, whether anything is usable (H), and what leads to a slot."""

    cluster: Range
    local: Range
    anything: bool
    schedule: int = Schedule.RANDOM.value


class Placed(NamedTuple):
    """The backends in the order of their slots, the ranges, and what belongs to these.

    ``tables``: of each range that has one. ``weights``: of the slots, where loads are compared.
    """

    backends: tuple[Backend, ...]
    slots: Slots
    tables: tuple[ScheduleTable, ...] = ()
    weights: tuple[PolicyWeights, ...] = ()


def place(
    endpoints: PortEndpoints,
    scheduling: Scheduling,
    default: Scheduler,
    *,
    needs_cluster: bool,
    needs_local: bool,
) -> Placed:
    """Return the slots of the endpoints that the service port needs.

    ``default`` is the scheduler of Services that name none.
    """
    eligible = endpoints.eligible
    cluster = eligible.cluster if needs_cluster else []
    local = eligible.local if needs_local else []
    anything = bool(eligible.cluster)
    if scheduling is USUAL_SCHEDULING and default == RANDOM:
        return _unscheduled(cluster, local, anything)
    weight = partial(_weight, endpoints, scheduling)
    if endpoints.key.protocol != IPPROTO_TCP:
        scheduling = scheduling._replace(away=(), trial=())
    return _scheduled(cluster, local, anything, scheduling, default, weight)


def usable_sets(
    endpoints: PortEndpoints, scheduling: Scheduling, *, needs_cluster: bool, needs_local: bool
) -> set[frozenset[Place]]:
    """Return the sets of endpoints that clients of the service port share, but those of weight 0.

    Those in quarantine are among them.
    """
    eligible = endpoints.eligible
    weight = partial(_weight, endpoints, scheduling)
    sets = [eligible.cluster] * needs_cluster + [eligible.local] * needs_local
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


def _scheduled(
    cluster: list[Backend],
    local: list[Backend],
    anything: bool,
    scheduling: Scheduling,
    default: Scheduler,
    weight: Callable[[Backend], int],
) -> Placed:
    """Place endpoints among which a scheduler chooses by their weights.

    Those in quarantine, or on trial after it, have weight 0, and their clients go elsewhere.
    """
    scheduler = scheduling.scheduler or default
    backends: list[Backend] = []
    quiesced: dict[Backend, None] = {}
    ranges: list[Range] = []
    tables: list[ScheduleTable] = []
    candidates: list[PolicyWeights] = []
    schedule = Schedule.RANDOM
    for endpoints in [cluster] if cluster == local else [cluster, local]:
        endpoints = in_order(scheduler, endpoints, weight)
        weighted = [(one, weight(one)) for one in endpoints]
        of_some = [one.place for one, of_one in weighted if of_one]
        gone = left_out(of_some, (*scheduling.away, *scheduling.trial))
        if gone:
            weighted = [(one, 0 if one.place in gone else of_one) for one, of_one in weighted]
        by, weights = gradual(
            _with_fallback(scheduler) if gone else scheduler, scheduling.shares, weighted
        )
        chosen = list(compress(endpoints, weights))
        tried = gone.intersection(scheduling.trial)
        on_trial = [one for one in endpoints if one.place in tried][:_MOST_TRIALS]
        nobody = compress(endpoints, map(not_, weights))
        quiesced |= dict.fromkeys(one for one in nobody if one not in on_trial)
        places = [one.place for one in endpoints]
        schedule, table, of_slots = lay_out(by, list(zip(places, weights, strict=True)))
        refuses = bool(endpoints) and (not chosen or _has_gap(table) or schedule.may_refuse)
        length = len(table) // PLACE_BYTES
        ranges.append(Range(len(backends), len(chosen), length, refuses, len(on_trial)))
        if table:
            tables.append((len(backends), table))
        if of_slots:
            candidates.append((len(backends), of_slots))
        backends += chosen + on_trial
    slots = Slots(ranges[0], ranges[-1], anything, schedule.value)
    return Placed((*backends, *quiesced), slots, tuple(tables), tuple(candidates))


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
