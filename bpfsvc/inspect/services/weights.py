"""The weights of endpoints, as far as the maps know them.

The maps have tables of slots, and not the weights. The weights follow from the tables, but for
what makes no difference.
"""

from __future__ import annotations

from collections import Counter
from math import gcd

from bpfsvc.inspect.entries import EntryReader
from bpfsvc.services.scheduling.extra import candidate_rows
from bpfsvc.services.scheduling.maps import CANDIDATES, SCHEDULE_TABLES

SlotRange = tuple[int, int, int]
"""Generation, first slot, size."""

_EXACT = ("random", "round")
"""Schedules with exact weights in their tables; other tables have a fixed number of places."""

_MOST, _TOLERANCE = 10, 0.03
"""Up to which smallest weight others are tried for such a table, and how far off they may be."""


def weights_of(
    entries: EntryReader, service: int, slots: SlotRange, schedule: str, table: int
) -> tuple[int, ...]:
    """Return the weight of each slot of a range, by a table of so many places or by candidates.

    ``table`` 0: the schedule compares loads. Returns weights of 1 if the entries have been removed
    meanwhile.
    """
    generation, first, size = slots
    start = service, generation, first
    if table:
        weights = _table_weights(entries, start, size, schedule, table)
    else:
        weights = _candidate_weights(entries, start, size)
    return weights or (1,) * size


def _candidate_weights(
    entries: EntryReader, start: tuple[int, int, int], size: int
) -> tuple[int, ...]:
    weights: list[int] = []
    chunk = 0
    while len(weights) < size:
        entry = entries.look_up(CANDIDATES, *start, chunk)
        chunk_weights = [weight for _, weight in candidate_rows(entry.rows)] if entry else []
        if not chunk_weights:
            return ()
        weights += chunk_weights
        chunk += 1
    return tuple(weights[:size])


def _table_weights(
    entries: EntryReader, start: tuple[int, int, int], size: int, schedule: str, table: int
) -> tuple[int, ...]:
    places, chunk = Counter[int](), 0
    while places.total() < table:
        entry = entries.look_up(SCHEDULE_TABLES, *start, chunk)
        if entry is None:
            return ()
        places.update(memoryview(entry.slots).cast("H").tolist()[: table - places.total()])
        chunk += 1
    counts = [places[slot] for slot in range(size)]
    return _exact(counts) if schedule in _EXACT else _close(counts)


def _exact(counts: list[int]) -> tuple[int, ...]:
    common = gcd(*counts) or 1
    return tuple(count // common for count in counts)


def _close(counts: list[int]) -> tuple[int, ...]:
    """Return the smallest weights that the numbers of places are nearly in proportion to."""
    least = min((count for count in counts if count), default=1)
    for unit in range(1, _MOST):
        weights = [count * unit / least for count in counts]
        if all(abs(weight - round(weight)) <= _TOLERANCE * max(weight, 1) for weight in weights):
            break
    return tuple(map(round, weights))
