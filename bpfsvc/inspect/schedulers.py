"""How a frontend chooses among its backends, in ip_vs's words, as far as the maps know it.

The maps have the kind of number that leads to a place, and tables of places; not the name of the
scheduler and not the weights. Both follow from these, but for what makes no difference: ``wrr``
with equal weights is ``rr``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from math import gcd
from typing import NamedTuple

from bpfsvc.datapath.maps.backend_loads import read_load
from bpfsvc.datapath.maps.layout import Layout, Record
from bpfsvc.datapath.maps.localities import kept_backends
from bpfsvc.inspect.fields import address_text, chooser, lacks
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.services.entries import CLIENTS, COMPARED, CandidateRun, candidate_rows
from bpfsvc.services.scheduling.in_force import scheduler_text
from bpfsvc.services.scheduling.schedulers import NO_SLOT, Schedule

SCHEDULING = (*(f"{who}.table" for who in CLIENTS), "schedule")
"""Fields of a frontend; builds that have none choose at random."""

TABLE = ("service", "generation", "first", "chunk")
PLACES = ("slots",)

LOCALITY = ("service", "address", "local", "schedule")
CHANGED = ("changed",)

_EXACT = ("random", "round")
"""Kinds of which the tables have the very weights; other tables have a fixed number of places."""

_COMPARED = tuple(one.name.lower() for one in Schedule if one.counts)
"""Kinds whose candidates have the weights."""

_MOST, _TOLERANCE = 10, 0.03
"""Up to which smallest weight others are tried for such a table, and how far off they may be."""


class FrontendSchedule(NamedTuple):
    """``kind``: the number that leads to a place; ``tables``: the places of each class's table."""

    kind: str = "random"
    tables: tuple[int, ...] = (0,) * len(CLIENTS)

    @property
    def scheduler(self) -> str:
        """The name of the scheduler."""
        return scheduler_text(self.kind, max(self.tables))

    @property
    def compares(self) -> bool:
        """True if it compares the loads of backends."""
        return self.kind in _COMPARED


_NO_SCHEDULE = FrontendSchedule()


def schedule_reader(layout: Layout) -> Callable[[bytes], FrontendSchedule]:
    """Return a function from a value of map ``frontends`` to how it chooses."""
    record = layout.maps["frontends"].value
    if lacks(record, SCHEDULING):
        return lambda _value: _NO_SCHEDULE
    choose, names = chooser(record, SCHEDULING), layout.constants_named("SCHEDULE_")

    def read(value: bytes) -> FrontendSchedule:
        *tables, number = choose(value)
        if not number and not any(tables):
            return _NO_SCHEDULE
        return FrontendSchedule(names.get(number, str(number)), tuple(tables))

    return read


def weights(
    reader: Reader, service: int, generation: int, slots: tuple[int, int], kind: str, table: int
) -> tuple[int, ...]:
    """Return the weight of each of the ``slots`` (first and number) of a policy.

    ``kind``, ``table``: of its :class:`FrontendSchedule`. Without a table all have weight 1.
    """
    first, size = slots
    if kind in _COMPARED:
        return _candidate_weights(reader, service, generation, first, size)
    layout = reader.layout.maps.get("schedule_tables")
    if not table or layout is None or lacks(layout.key, TABLE) or lacks(layout.value, PLACES):
        return (1,) * size
    places, chunk = Counter[int](), 0
    while places.total() < table:
        key = {"service": service, "generation": generation, "first": first, "chunk": chunk}
        raw = reader.value("schedule_tables", layout.key.pack(key))
        if raw is None:
            return (1,) * size  # removed meanwhile
        places.update(places_of(raw, layout.value)[: table - places.total()])
        chunk += 1
    counts = [places[slot] for slot in range(size)]
    return _exact(counts) if kind in _EXACT else _close(counts)


def _candidate_weights(
    reader: Reader, service: int, generation: int, first: int, size: int
) -> tuple[int, ...]:
    key = reader.layout.maps["candidates"].key
    found: list[int] = []
    while len(found) < size:
        chunk = {"service": service, "generation": generation, "first": first}
        raw = reader.value("candidates", key.pack({**chunk, "chunk": len(found) // COMPARED}))
        rows = [weight for _, weight in candidate_rows(CandidateRun(raw or b""))]
        if not rows:
            return (1,) * size  # removed meanwhile
        found += rows
    return tuple(found[:size])


def _chunks(
    reader: Reader, name: str, column: str, shown: Callable[[bytes], tuple[str, ...]]
) -> Records:
    """Return the entries of a map that holds something in chunks, for ranges of slots.

    ``shown``: returns what is shown of a value, in the ``column``.
    """
    key, names = chooser(reader.layout.maps[name].key, TABLE), ServiceNames(reader)
    rows: list[Row] = []
    for raw_key, raw in reader.entries(name):
        service, generation, first, chunk = key(raw_key)
        rows.append((names[service], generation, first, chunk, shown(raw)))
    return Records(name, (*TABLE, column), sorted(rows))


def candidates(reader: Reader) -> Records:
    """Return whose loads are compared, in this order: the id of the counters, and the weight."""

    def shown(raw: bytes) -> tuple[str, ...]:
        return tuple(f"{one}={weight}" for one, weight in candidate_rows(CandidateRun(raw)))

    return _chunks(reader, "candidates", "candidates", shown)


def backend_loads(reader: Reader) -> Records:
    """Return the loads that are not 0, by the ids of counters."""
    record = reader.layout.maps["backend_loads"].value
    rows: list[Row] = []
    for raw_key, raw in reader.entries("backend_loads"):
        if any(raw):
            load = read_load(raw, record)
            rows.append((int.from_bytes(raw_key, sys.byteorder), *load.connections, *load.sockets))
    columns = ("counters", "active", "inactive", "active_sockets", "inactive_sockets")
    return Records("backend_loads", columns, sorted(rows))


def localities(reader: Reader, now: int) -> Records:
    """Return the backends that each address keeps to, by the ids of counters.

    ``now`` is CLOCK_MONOTONIC in ns. ``changed``: seconds since a set of ``lblcr`` has changed.
    """
    layout = reader.layout.maps["localities"]
    key, changed = chooser(layout.key, LOCALITY), chooser(layout.value, CHANGED)
    names, kinds = ServiceNames(reader), reader.layout.constants_named("SCHEDULE_")
    sets = reader.layout.constants_named("AMONG_")
    rows: list[Row] = []
    for raw_key, raw in reader.entries("localities"):
        service, address, number, schedule = key(raw_key)
        among = sets.get(number, str(number))
        (at,) = changed(raw)
        age = round(max(0, now - at) / 1e9, 1) if at else ""
        kind = kinds.get(schedule, str(schedule))
        kept = tuple(map(str, kept_backends(raw, layout.value)))
        rows.append((names[service], address_text(address), among, kind, kept, age))
    columns = ("service", "address", "among", "scheduler", "counters", "changed")
    return Records("localities", columns, sorted(rows), frozenset({"changed"}))


def places_of(raw: bytes, record: Record) -> list[int]:
    """Return the numbers of slots in a value of map ``schedule_tables``."""
    (slots,) = chooser(record, PLACES)(raw)
    return memoryview(slots).cast("H").tolist()


def schedule_tables(reader: Reader) -> Records:
    """Return the places of the tables: numbers of slots, counted from ``first``; ``-`` is none."""
    record = reader.layout.maps["schedule_tables"].value

    def shown(raw: bytes) -> tuple[str, ...]:
        places = places_of(raw, record)
        while places and places[-1] == NO_SLOT:
            places.pop()
        return tuple("-" if slot == NO_SLOT else str(slot) for slot in places)

    return _chunks(reader, "schedule_tables", "places", shown)


def _exact(counts: list[int]) -> tuple[int, ...]:
    common = gcd(*counts) or 1
    return tuple(count // common for count in counts)


def _close(counts: list[int]) -> tuple[int, ...]:
    """Return the smallest weights that the numbers of places are nearly in proportion to."""
    least = min((count for count in counts if count), default=1)
    for unit in range(1, _MOST):
        found = [count * unit / least for count in counts]
        if all(abs(one - round(one)) <= _TOLERANCE * max(one, 1) for one in found):
            break
    return tuple(map(round, found))
