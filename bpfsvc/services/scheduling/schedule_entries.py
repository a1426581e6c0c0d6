"""The entries that scheduling writes into maps: tables, and what the programs compare and remember.

They follow from what :class:`~bpfsvc.services.plans.applied.Applied` has of a service port.
:mod:`bpfsvc.services.plans.registry` describes their maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from bpfsvc.services.entries import (
    COMPARED,
    SPILL_COMPARED,
    CandidateRun,
    PlaceRun,
    Policy,
    Spill,
    candidate_rows,
    candidate_run,
    spilled_policy,
)
from bpfsvc.services.plans.applied import Applied
from bpfsvc.services.scheduling.schedulers import Schedule
from bpfsvc.services.scheduling.spill import sample


class ScheduleTableEntry(NamedTuple):
    """128 places of the table that belongs to the slots from ``first`` on."""

    service_id: int
    generation: int
    first: int
    chunk: int
    slots: PlaceRun


class CandidatesEntry(NamedTuple):
    """64 backends of those from slot ``first`` on, of which the programs compare the loads."""

    service_id: int
    generation: int
    first: int
    chunk: int
    rows: CandidateRun


class SpillEntry(NamedTuple):
    """To what connections of a service port spill over, and when.

    What stands in front of ``compared`` is a :data:`~bpfsvc.services.entries.Spill`. What follows
    are the ids of the counters of the endpoints whose loads are added up, the near ones first, and
    what the sums are multiplied with (:class:`bpfsvc.services.scheduling.spill.Sample`).
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
        return self[2:10]


class RoundEntry(NamedTuple):
    """A service port whose backends take turns."""

    service_id: int


class LocalityEntry(NamedTuple):
    """What an address of a service port keeps to. ``local``: backends of which set (:func:`among`).

    It has the name that it had while there were two sets: an agent that is upgraded carries over
    what it finds by the names of fields.
    """

    service_id: int
    address: bytes
    local: int
    schedule: int


def candidates(one: Applied) -> Iterator[CandidatesEntry]:
    """Yield the weights that the service port has, each with the counters of its backend."""
    found = one.extra.get("candidates")
    if not found:
        return
    counters = [counters_id for _, _, counters_id, _ in one.records()]
    at: dict[int, int] = {}
    for first, chunk, run in found:
        weights = [weight for _, weight in candidate_rows(run)]
        start = at.setdefault(first, first)
        at[first] = start + len(weights)
        rows = candidate_run(zip(counters[start : start + len(weights)], weights, strict=True))
        yield CandidatesEntry(one.service_id, one.generation, first, chunk, rows)


def candidate_weights(entry: CandidatesEntry) -> tuple[Any, ...]:
    """Return what the service port has of such an entry."""
    weights = candidate_run((0, weight) for _, weight in candidate_rows(entry.rows))
    return entry.first, entry.chunk, weights


def spills(one: Applied) -> Iterator[SpillEntry]:
    """Yield what the service port has of it, with the counters of the endpoints to be compared."""
    for spill in one.extra.get("spills", ()):
        first, size, _, near_first, near_size, _, overload, _ = spill
        counters = [counters_id for _, _, counters_id, _ in one.records()]
        near = counters[near_first : near_first + near_size]
        known = set(near)
        far = [each for each in counters[first : first + size] if each not in known]
        found = sample(overload, len(near), len(far))
        rows = [near[at] for at in found.near] + [far[at] for at in found.far]
        ids = (*rows, *(0,) * (SPILL_COMPARED - len(rows)))
        summed = (len(rows), len(found.near), found.near_factor, found.far_factor, ids)
        yield SpillEntry._make((one.service_id, one.generation, *spill, *summed))


_ROUND = Schedule.ROUND.value


def rounds(one: Applied) -> Iterable[RoundEntry]:
    """Return an entry if backends take turns."""
    for policies in one.flat_frontends[1::2]:
        if policies.schedule == _ROUND:  # type: ignore[union-attr]
            return (RoundEntry(one.service_id),)
    return ()


_LOCAL = tuple(one.value for one in Schedule if one.is_local)


def localities(one: Applied) -> Iterable[LocalityEntry]:
    """Return what the addresses keep to, where the schedule is one that keeps it."""
    for policies in one.flat_frontends[1::2]:
        if policies.schedule in _LOCAL:  # type: ignore[union-attr]
            return dict.fromkeys(_localities_of(one))
    return ()


def among(policy: Policy) -> int:
    """Return which endpoints a policy chooses from, as localities have it (``enum among``)."""
    return int(policy.first > 0) << policy.spills


def _localities_of(one: Applied) -> Iterator[LocalityEntry]:
    """Yield one for each set of backends that is small enough to be compared.

    The node itself has none: its sockets get the least loaded of all backends.
    """
    every = spilled_policy(one.extra)
    for frontend, policies in one.frontend_items():
        met = (policies.pod, policies.other) if policies.schedule in _LOCAL else ()
        for policy in (*met, every) if every and any(each.spills for each in met) else met:
            if 0 < policy.size <= COMPARED:
                yield LocalityEntry(
                    one.service_id, frontend.address, among(policy), policies.schedule
                )
