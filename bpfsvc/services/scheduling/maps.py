"""The maps of scheduling and their entries: tables, and what the programs compare and remember.

Entries follow from what :class:`~bpfsvc.services.plans.applied.Applied` has of a service port. A
new map is its entry type and a line in :data:`SCHEDULING_MAPS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from bpfsvc.services.entries import Extra, Policies, Policy
from bpfsvc.services.scheduling.extra import (
    COMPARED,
    SPILL_COMPARED,
    CandidateRun,
    PlaceRun,
    Spill,
    candidate_rows,
    candidate_run,
    chunks_of,
    overflow_policy,
)
from bpfsvc.services.scheduling.schedulers import Schedule, counts_connections
from bpfsvc.services.scheduling.spill import sample
from bpfsvc.services.service_map import Restore, ServiceMap, extra_map

if TYPE_CHECKING:
    from bpfsvc.services.plans.applied import Applied


class ScheduleTableEntry(NamedTuple):
    """128 places of the table that belongs to the slots from ``first`` on."""

    service_id: int
    generation: int
    first: int
    chunk: int
    slots: PlaceRun


class CandidatesEntry(NamedTuple):
    """64 of the backends from slot ``first`` on: the programs compare their loads."""

    service_id: int
    generation: int
    first: int
    chunk: int
    rows: CandidateRun


class SpillEntry(NamedTuple):
    """Where connections of a service port overflow to, and when.

    The fields before ``compared`` are the fields of
    :class:`~bpfsvc.services.scheduling.extra.Spill`. The others are the ids of the counters of the
    endpoints in the sums of loads, near endpoints first, and the factors of the sums
    (:class:`bpfsvc.services.scheduling.spill.Sample`).
    """

    service_id: int
    generation: int
    first: int
    size: int
    table: int
    near_first: int
    near_size: int
    far_trials: int
    overload: int
    inactive: int
    compared: int
    near: int
    near_factor: int
    far_factor: int
    counters: tuple[int, ...]

    @property
    def spill(self) -> Spill:
        """What the service port has of it."""
        return Spill._make(getattr(self, name) for name in Spill._fields)


class RoundEntry(NamedTuple):
    """A service port with backends that take turns."""

    service_id: int


class LocalityEntry(NamedTuple):
    """The backends that an address of a service port keeps to are counted in the value.

    ``local``: the set of backends (:func:`among`). The name is from the time of two sets: an agent
    that is upgraded carries entries over by the names of fields.
    """

    service_id: int
    address: bytes
    local: int
    schedule: int


def candidates(state: Applied) -> Iterator[CandidatesEntry]:
    """Yield the weights that the service port has, each with the counters of its backend."""
    chunks = state.extra.get("candidates")
    if not chunks:
        return
    counters = [counters_id for _, _, counters_id, _ in state.records()]
    at: dict[int, int] = {}
    for first, chunk, run in chunks:
        weights = [weight for _, weight in candidate_rows(run)]
        start = at.setdefault(first, first)
        at[first] = start + len(weights)
        rows = candidate_run(zip(counters[start : start + len(weights)], weights, strict=True))
        yield CandidatesEntry(state.service_id, state.generation, first, chunk, rows)


def candidate_weights(entry: CandidatesEntry) -> tuple[Any, ...]:
    """Return what the service port has of such an entry."""
    weights = candidate_run((0, weight) for _, weight in candidate_rows(entry.rows))
    return entry.first, entry.chunk, weights


def spills(state: Applied) -> Iterator[SpillEntry]:
    """Yield where connections overflow to, with the counters of the endpoints to be compared."""
    for spill in map(Spill._make, state.extra.get("spills", ())):
        counters = [counters_id for _, _, counters_id, _ in state.records()]
        near = counters[spill.near_first : spill.near_first + spill.near_size]
        every = counters[spill.first : spill.first + spill.size]
        known = set(near)
        far = [counters_id for counters_id in every if counters_id not in known]
        chosen = sample(spill.overload, len(near), len(far))
        rows = [near[at] for at in chosen.near] + [far[at] for at in chosen.far]
        ids = (*rows, *(0,) * (SPILL_COMPARED - len(rows)))
        summed = (len(rows), len(chosen.near), chosen.near_factor, chosen.far_factor, ids)
        yield SpillEntry._make((state.service_id, state.generation, *spill, *summed))


_ROUND = Schedule.ROUND.value


def rounds(state: Applied) -> Iterable[RoundEntry]:
    """Return an entry if backends take turns."""
    for policies in state.flat_frontends[1::2]:
        if policies.schedule == _ROUND:  # type: ignore[union-attr]
            return (RoundEntry(state.service_id),)
    return ()


_LOCAL = tuple(schedule.value for schedule in Schedule if schedule.is_local)


def localities(state: Applied) -> Iterable[LocalityEntry]:
    """Return the entries of the service port, if its schedule is ``lblc`` or ``lblcr``."""
    for policies in state.flat_frontends[1::2]:
        if policies.schedule in _LOCAL:  # type: ignore[union-attr]
            return dict.fromkeys(_localities_of(state))
    return ()


class Among(IntEnum):
    """Which backends of a service port a policy chooses from: ``enum among`` of localities.h."""

    ALL = 0
    LOCAL = 1
    NEAR = 2


def among(policy: Policy) -> int:
    """Return which backends a policy chooses from, as localities have it."""
    if not policy.first:
        return Among.ALL.value
    return (Among.NEAR if policy.spills else Among.LOCAL).value


def _localities_of(state: Applied) -> Iterator[LocalityEntry]:
    """Yield an entry for each set of backends that is small enough to be compared.

    The node itself has none: its sockets get the least loaded of all backends.
    """
    overflow = overflow_policy(state.extra)
    for frontend, policies in state.frontend_items():
        if policies.schedule not in _LOCAL:
            continue
        chosen = [policies.pod, policies.other]
        if overflow and any(policy.spills for policy in chosen):
            chosen.append(overflow)
        for policy in chosen:
            if 0 < policy.size <= COMPARED:
                yield LocalityEntry(
                    state.service_id, frontend.address, among(policy), policies.schedule
                )


SCHEDULE_TABLES = extra_map("schedule_tables", ScheduleTableEntry, 4, "--max-schedule-chunks")
CANDIDATES = ServiceMap(
    "candidates",
    CandidatesEntry,
    4,
    "--max-schedule-chunks",
    candidates,
    Restore.EXTRA,
    extra_of=candidate_weights,
)
SPILLS = ServiceMap(
    "spills",
    SpillEntry,
    2,
    "--max-schedule-chunks",
    spills,
    Restore.EXTRA,
    extra_of=lambda entry: entry.spill,
)
SCHEDULE_ROUNDS = ServiceMap(
    "schedule_rounds", RoundEntry, 1, "--max-services", rounds, Restore.DERIVED, put_once=True
)
LOCALITIES = ServiceMap(
    "localities",
    LocalityEntry,
    4,
    "--max-schedule-chunks",
    localities,
    Restore.DERIVED,
    put_once=True,
)

SCHEDULING_MAPS: tuple[ServiceMap[Any], ...] = (
    SCHEDULE_TABLES,
    CANDIDATES,
    SPILLS,
    SCHEDULE_ROUNDS,
    LOCALITIES,
)
"""In the order in which entries may be put; frontends are put after all of them."""


# -- what an earlier agent left --


def is_complete(frontends: Collection[Policies], extra: Extra, slots: int) -> bool:
    """True if nothing is missing that these policies need to choose one of so many slots."""
    policies = {policy for of_frontend in frontends for policy in of_frontend.by_class}
    counted = {
        policy
        for of_frontend in frontends
        if counts_connections(of_frontend)
        for policy in of_frontend.by_class
    }
    spills = [Spill._make(spill) for spill in extra.get(SPILLS.name, ())]
    near = {(policy.first, policy.size) for policy in policies if policy.spills}
    if near and near != {(spill.near_first, spill.near_size) for spill in spills}:
        return False
    if every := overflow_policy(extra):
        policies.add(every)
        counted.add(every)
    reach = max((policy.first + policy.size for policy in policies), default=0)
    return reach <= slots and _has_tables(policies, extra) and _has_candidates(counted, extra)


def _has_tables(policies: Iterable[Policy], extra: Extra) -> bool:
    """True if no entry is missing of the tables that the policies have."""
    needed = {
        (policy.first, chunk)
        for policy in policies
        if policy.table
        for chunk in chunks_of(policy.table)
    }
    return needed <= {(first, chunk) for first, chunk, _ in extra.get(SCHEDULE_TABLES.name, ())}


def _has_candidates(policies: Iterable[Policy], extra: Extra) -> bool:
    """True if each backend of policies that count connections has its weight."""
    weights: Counter[int] = Counter()
    for first, _, run in extra.get(CANDIDATES.name, ()):
        weights[first] += sum(1 for _ in candidate_rows(run))
    return all(weights[policy.first] == policy.size for policy in policies if policy.size)
