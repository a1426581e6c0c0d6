"""Where the endpoints of a service port stand in the kernel: ranges of backend slots, and tables.

C stands in the first slots and L in the next, only where some client uses them; equal sets share
slots. Where connections may overflow from C, all endpoints that serve stand before C.
A range holds the endpoints that may be chosen. Endpoints on trial stand behind their range, and
endpoints of weight 0 behind all ranges: these get no new connections, but the connections that they
have go on and are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import compress
from operator import not_
from socket import IPPROTO_SCTP, IPPROTO_TCP
from typing import NamedTuple

from bpfsvc.services.entries import NO_EXTRA, Backend, Extra, Place, Policies, Policy
from bpfsvc.services.port_endpoints import PortEndpoints, Uses
from bpfsvc.services.scheduling.annotations import USUAL_SCHEDULING, Need, Scheduling
from bpfsvc.services.scheduling.extra import (
    MAX_TRIALS,
    PLACE_BYTES,
    PolicyWeights,
    ScheduleTable,
    Spill,
    extra_entries,
)
from bpfsvc.services.scheduling.quarantine import left_out
from bpfsvc.services.scheduling.schedulers import (
    NO_SLOT,
    RANDOM,
    Schedule,
    Scheduler,
    in_order,
    lay_out,
)
from bpfsvc.services.scheduling.slow_start import gradual
from bpfsvc.services.scheduling.spill import can_spill
from bpfsvc.services.scheduling.weights import USUAL


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


_NOTHING = Policy(0, 0, False, False)

_USUAL_CHOICE = Policies(_NOTHING, _NOTHING, _NOTHING)


class Slots(NamedTuple):
    """The ranges of C and of L, and how one of their slots is chosen.

    ``anything``: anything is usable (H). ``choice``: has the fields of policies that scheduling
    decides, without the policy of any client. ``spills``: connections may overflow from C.
    """

    cluster: Range
    local: Range
    anything: bool
    choice: Policies = _USUAL_CHOICE
    spills: bool = False


class Placed(NamedTuple):
    """The backends in the order of their slots, the ranges, and entries of scheduling's maps."""

    backends: tuple[Backend, ...]
    slots: Slots
    extra: Extra = NO_EXTRA


def place(
    endpoints: PortEndpoints, uses: Uses, scheduling: Scheduling, default: Scheduler
) -> Placed:
    """Return the slots of the endpoints that clients of the service port use.

    ``default`` is the scheduler of Services that name none.
    """
    if scheduling is USUAL_SCHEDULING and default == RANDOM:
        return _place_usual(endpoints, uses)
    return _Placement(endpoints, uses, scheduling, default).place()


def usable_sets(
    endpoints: PortEndpoints, uses: Uses, scheduling: Scheduling
) -> set[frozenset[Place]]:
    """Return the sets of endpoints that clients of the service port share, ejected ones included.

    Endpoints of weight 0 are in none.
    """
    eligible = endpoints.eligible
    sets = [eligible.cluster, endpoints.everywhere or eligible.cluster] if uses.cluster else []
    sets += [eligible.local] * uses.local
    return {
        frozenset(backend.place for backend in backends if _weight(endpoints, scheduling, backend))
        for backends in sets
    }


def _place_usual(endpoints: PortEndpoints, uses: Uses) -> Placed:
    """Place endpoints for random choice without weights, the usual case."""
    eligible = endpoints.eligible
    cluster = eligible.cluster if uses.cluster else []
    local = eligible.local if uses.local else []
    anything = bool(eligible.cluster)
    if cluster == local:
        return Placed(tuple(cluster), _slots(len(cluster), 0, len(local), anything))
    return Placed((*cluster, *local), _slots(len(cluster), len(cluster), len(local), anything))


@lru_cache(maxsize=1024)
def _slots(of_cluster: int, first_local: int, of_local: int, anything: bool) -> Slots:
    """Return slots without tables; ten thousand Services share a few of these."""
    return Slots(Range(0, of_cluster), Range(first_local, of_local), anything)


class _Set(NamedTuple):
    """A set of endpoints that some clients share, arranged by the scheduler.

    * ``schedule``, ``table``, ``weights``: as :class:`.schedulers.Layout` has them.
    * ``chosen``: the endpoints that may be chosen, in the order of their slots.
    * ``tried``: the endpoints on trial. ``left``: all others.
    * ``refuses``: as :class:`Range` has it.
    """

    schedule: Schedule
    table: bytes
    weights: tuple[int, ...]
    chosen: list[Backend]
    tried: list[Backend]
    left: list[Backend]
    refuses: bool


class _Placement:
    """Places the endpoints of one service port, among which a scheduler chooses by weights."""

    def __init__(
        self, endpoints: PortEndpoints, uses: Uses, scheduling: Scheduling, default: Scheduler
    ) -> None:
        self._endpoints = endpoints
        self._cluster = endpoints.eligible.cluster if uses.cluster else []
        self._local = endpoints.eligible.local if uses.local else []
        self._everywhere = endpoints.everywhere if uses.cluster else []
        self._scheduling = scheduling
        self._scheduler = scheduling.scheduler or default
        self._is_tcp = endpoints.key.protocol == IPPROTO_TCP
        self._backends: list[Backend] = []
        self._left: list[Backend] = []
        self._tables: list[ScheduleTable] = []
        self._weights: list[PolicyWeights] = []

    def place(self) -> Placed:
        """Return the slots."""
        cluster = self._arrange(self._cluster)
        local = cluster if self._cluster == self._local else self._arrange(self._local)
        spill = None
        if self._everywhere and self._everywhere != self._cluster:
            every = self._arrange(self._everywhere)
            if self._can_overflow(every, cluster):
                near, spill = self._add_overflow(every, cluster)
        if not spill:
            near = self._add(cluster, cluster.tried)
        of_local = near if local is cluster else self._add(local, local.tried)
        slots = Slots(
            near,
            of_local,
            bool(self._endpoints.eligible.cluster),
            self._choice(local.schedule),
            spill is not None,
        )
        placed = set(self._backends)
        unused = [backend for backend in dict.fromkeys(self._left) if backend not in placed]
        extra = extra_entries(tuple(self._tables), tuple(self._weights), spill)
        return Placed((*self._backends, *unused), slots, extra)

    def _choice(self, schedule: Schedule) -> Policies:
        needs = self._scheduling.needs
        choice = _USUAL_CHOICE._replace(
            schedule=schedule.value, counted=Need.COUNTS in needs, **self._scheduling.written
        )
        if self._is_tcp:
            return choice._replace(watched=Need.OUTCOMES in needs)
        return choice._replace(removal=_USUAL_CHOICE.removal)

    def _can_overflow(self, every: _Set, near: _Set) -> bool:
        """True if the near endpoints can ever carry too much."""
        used = {backend.place for backend in (*every.chosen, *near.chosen)}
        overload = self._scheduling.zone_overload
        return bool(near.chosen) and can_spill(overload, len(near.chosen), len(used))

    def _add_overflow(self, every: _Set, near: _Set) -> tuple[Range, Spill]:
        """Place all endpoints, and behind them the near ones; return the near range.

        Endpoints on trial of both sets stand behind the near range, near ones first: a far endpoint
        is probed by a connection that overflows, and by no other.
        """
        tried = list(dict.fromkeys((*near.tried, *every.tried)))[:MAX_TRIALS]
        far_trials = len(tried) - len(near.tried[:MAX_TRIALS])
        of_every = self._add(every, [])
        of_near = self._add(near, tried)
        spill = Spill(
            of_every.first,
            of_every.size,
            of_every.table,
            of_near.first,
            of_near.size,
            far_trials,
            self._scheduling.zone_overload,
            inactive=int(self._endpoints.key.protocol not in (IPPROTO_TCP, IPPROTO_SCTP)),
        )
        return of_near._replace(refuses=of_near.refuses or of_every.refuses), spill

    def _add(self, arranged: _Set, tried: list[Backend]) -> Range:
        """Give a set the next slots, and the endpoints on trial the slots behind them."""
        first, tried = len(self._backends), tried[:MAX_TRIALS]
        if arranged.table:
            self._tables.append((first, arranged.table))
        if arranged.weights:
            self._weights.append((first, arranged.weights))
        self._backends += arranged.chosen + tried
        self._left += arranged.left + arranged.tried
        places = len(arranged.table) // PLACE_BYTES
        return Range(first, len(arranged.chosen), places, arranged.refuses, len(tried))

    def _arrange(self, endpoints: list[Backend]) -> _Set:
        """Return a set of endpoints as the scheduler arranges it."""
        scheduling = self._scheduling
        endpoints = in_order(self._scheduler, endpoints, self._weight)
        weighted = [(backend, self._weight(backend)) for backend in endpoints]
        ejected = self._ejected(backend.place for backend, weight in weighted if weight)
        if ejected:
            weighted = [
                (backend, 0 if backend.place in ejected else weight) for backend, weight in weighted
            ]
        scheduler = _with_fallback(self._scheduler) if ejected else self._scheduler
        scheduler, weights = gradual(scheduler, scheduling.shares, weighted)
        chosen = list(compress(endpoints, weights))
        places = [backend.place for backend in endpoints]
        schedule, table, of_slots = lay_out(scheduler, list(zip(places, weights, strict=True)))
        if Need.COUNTS in scheduling.needs:
            of_slots = of_slots or tuple(filter(None, weights))
        refuses = bool(endpoints) and (not chosen or _has_gap(table) or schedule.may_refuse)
        on_trial = ejected.intersection(scheduling.trial)
        tried = [backend for backend in endpoints if backend.place in on_trial]
        unused = compress(endpoints, map(not_, weights))
        left = [backend for backend in unused if backend.place not in on_trial]
        return _Set(schedule, table, of_slots, chosen, tried, left, refuses)

    def _ejected(self, places: Iterable[Place]) -> set[Place]:
        """Return which endpoints of a set get weight 0, ejected or on trial; only with TCP."""
        if not self._is_tcp:
            return set()
        return left_out(list(places), (*self._scheduling.away, *self._scheduling.trial))

    def _weight(self, backend: Backend) -> int:
        return _weight(self._endpoints, self._scheduling, backend)


def _with_fallback(scheduler: Scheduler) -> Scheduler:
    """Return the scheduler that sends clients of an endpoint of weight 0 to another endpoint.

    ``sh`` has a flag of ip_vs for that; ``dh`` does likewise. The others do so anyway.
    """
    return scheduler._replace(flags=(*scheduler.flags, f"{scheduler.name}-fallback"))


def _weight(endpoints: PortEndpoints, scheduling: Scheduling, backend: Backend) -> int:
    traits = endpoints.all[backend.place]
    of_slice = endpoints.weights.get(backend.place, USUAL)
    return scheduling.weights.of(backend.address, traits.node, traits.zone, of_slice)


def _has_gap(table: bytes) -> bool:
    """True if a place of the table has no slot."""
    return NO_SLOT in memoryview(table).cast("H")
