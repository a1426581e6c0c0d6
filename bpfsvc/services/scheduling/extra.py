"""What scheduling adds to the entries of a service port: tables, weights, and when to overflow.

These are values of :data:`~bpfsvc.services.entries.Extra`, without service id, generation and ids
of counters. :mod:`bpfsvc.services.scheduling.maps` makes entries of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, NewType
from weakref import WeakValueDictionary

from bpfsvc.services.entries import NO_EXTRA, Extra, Policy

PlaceRun = NewType("PlaceRun", bytes)
"""Places of a table, end to end: numbers of slots in the machine's order."""

PLACE_BYTES = 2

ScheduleTable = tuple[int, bytes]
"""The first slot of a policy, and all places of its table."""

TABLE_CHUNK = 128
"""Places in one entry of the map."""

_CHUNK = TABLE_CHUNK * PLACE_BYTES

_UNUSED = b"\xff"

CandidateRun = NewType("CandidateRun", bytes)
"""Candidates, end to end: the id of the counters and the weight, both of 32 bits."""

_CANDIDATE = struct.Struct("=II")

COMPARED = 64
"""Candidates in one entry of the map: so many are compared; of more, two at random are."""

PolicyWeights = tuple[int, tuple[int, ...]]
"""The first slot of a policy, and the weight of each of its slots."""

SPILL_COMPARED = 64
"""The most endpoints in the sums of loads."""

MAX_TRIALS = 255
"""Endpoints on trial at once; the number is a byte."""


class Spill(NamedTuple):
    """Where connections overflow to, and when.

    * ``first``, ``size``, ``table``: of all endpoints that serve, as a policy has them.
    * ``near_first``, ``near_size``: the slots of the near endpoints.
    * ``far_trials``: how many backends on trial behind the near slots, the last ones, are only for
      connections that overflow.
    * ``overload``: in thousandths.
    * ``inactive``: 1 if inactive connections count, too, as with UDP.
    """

    first: int
    size: int
    table: int
    near_first: int
    near_size: int
    far_trials: int
    overload: int
    inactive: int


def candidate_run(rows: Iterable[tuple[int, int]]) -> CandidateRun:
    """Return one entry of candidates, of ids of counters and weights."""
    packed = b"".join(_CANDIDATE.pack(*row) for row in rows)
    return CandidateRun(packed.ljust(_CANDIDATE.size * COMPARED, b"\0"))


def candidate_rows(run: CandidateRun) -> Iterator[tuple[int, int]]:
    """Yield ids of counters and weights; a row of weight 0 is no candidate."""
    return (row for row in _CANDIDATE.iter_unpack(run) if row[1])


def chunks_of(table: int) -> range:
    """Return the numbers of the entries that hold a table of so many places."""
    return range(-(-table * PLACE_BYTES // _CHUNK))


class _Shared(dict[str, tuple[tuple[Any, ...], ...]]):
    """Entries that a weak reference may refer to. Nobody changes them."""

    __slots__ = ("__weakref__",)


_shared: WeakValueDictionary[tuple[object, ...], _Shared] = WeakValueDictionary()
"""The entries that Services have, by what they are made of.

A table of ``mh`` is made of the addresses of endpoints. It takes up to 0.8 MB with its entries, so
it must go with the last Service that has it."""


def extra_entries(
    tables: tuple[ScheduleTable, ...] = (),
    weights: tuple[PolicyWeights, ...] = (),
    spill: Spill | None = None,
) -> Extra:
    """Return the entries of schedules' tables, of candidates and of spills.

    Services with equal tables, weights and spills share them.
    """
    key = tables, weights, spill
    extra = _shared.get(key)
    if extra is None:
        extra = _entries(*key)
        if not extra:
            return NO_EXTRA
        _shared[key] = extra
    return extra


def _entries(
    tables: tuple[ScheduleTable, ...],
    weights: tuple[PolicyWeights, ...],
    spill: Spill | None,
) -> _Shared:
    extra = _Shared()
    if tables:
        extra["schedule_tables"] = tuple(
            (first, at // _CHUNK, table[at : at + _CHUNK].ljust(_CHUNK, _UNUSED))
            for first, table in tables
            for at in range(0, len(table), _CHUNK)
        )
    if weights:
        extra["candidates"] = tuple(
            (first, chunk, candidate_run((0, weight) for weight in of_slots[at : at + COMPARED]))
            for first, of_slots in weights
            for chunk, at in enumerate(range(0, len(of_slots), COMPARED))
        )
    if spill:
        extra["spills"] = (spill,)
    return extra


def overflow_policy(extra: Extra) -> Policy | None:
    """Return the policy by which connections that overflow choose; None if none do."""
    for first, size, table, *_ in extra.get("spills", ()):
        return Policy(first, size, False, False, table)
    return None
