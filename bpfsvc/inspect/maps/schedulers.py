"""Records of scheduling: tables, candidates, loads of backends, localities, locality overflow."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bpfsvc.datapath.maps.backend_loads import read_load
from bpfsvc.datapath.maps.localities import kept_backends
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.fields import address_text, chooser
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.services.scheduling.extra import candidate_rows
from bpfsvc.services.scheduling.maps import CANDIDATES, SCHEDULE_TABLES, SPILLS
from bpfsvc.services.scheduling.schedulers import NO_SLOT
from bpfsvc.services.scheduling.spill import overload_text
from bpfsvc.services.service_map import E, ServiceMap

LOCALITY = ("service", "address", "local", "schedule")
CHANGED = ("changed",)

_CHUNK = ("service", "generation", "first", "chunk")

_SPILL_COLUMNS = (
    *("service", "generation", "overload", "all", "near", "far_trials", "connections"),
    *("near_counters", "far_counters"),
)


def schedule_tables(reader: Reader) -> Records:
    """Return the places of the tables: numbers of slots, counted from ``first``; ``-`` is none."""

    def shown(packed: bytes) -> tuple[str, ...]:
        places = memoryview(packed).cast("H").tolist()
        while places and places[-1] == NO_SLOT:
            places.pop()
        return tuple("-" if slot == NO_SLOT else str(slot) for slot in places)

    return _chunks(reader, SCHEDULE_TABLES, "places", lambda entry: shown(entry.slots))


def candidates(reader: Reader) -> Records:
    """Return the backends that are compared, in order: id of the counters, and weight."""
    return _chunks(
        reader,
        CANDIDATES,
        "candidates",
        lambda entry: tuple(f"{id_}={weight}" for id_, weight in candidate_rows(entry.rows)),
    )


def _chunks(
    reader: Reader, service_map: ServiceMap[E], column: str, shown: Callable[[E], tuple[str, ...]]
) -> Records:
    """Return the entries of a map that has chunks for ranges of slots.

    ``shown``: returns the cell of an entry in the ``column``.
    """
    names = ServiceNames(reader)
    rows: list[Row] = [
        (names[entry[0]], *entry[1:4], shown(entry))
        for entry in EntryReader(reader).read(service_map)
    ]
    return Records(service_map.name, (*_CHUNK, column), sorted(rows))


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
    """Return the backends that each address keeps, by the ids of counters.

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


def spills(reader: Reader) -> Records:
    """Return for each service port the endpoints that connections overflow to, and when.

    ``all`` and ``near`` are slots; ``near_counters`` and ``far_counters`` ids of the counters of
    the endpoints that are compared.
    """
    names = ServiceNames(reader)
    rows: list[Row] = []
    for entry in EntryReader(reader).read(SPILLS):
        ids = tuple(map(str, entry.counters[: entry.compared]))
        rows.append(
            (
                *(names[entry.service_id], entry.generation, overload_text(entry.overload)),
                _slots_text(entry.first, entry.size),
                _slots_text(entry.near_first, entry.near_size),
                entry.far_trials,
                "active and inactive" if entry.inactive else "active",
                *(ids[: entry.near], ids[entry.near :]),
            )
        )
    return Records("spills", _SPILL_COLUMNS, sorted(rows))


def _slots_text(first: int, size: int) -> str:
    return f"{first}-{first + size - 1}" if size else "-"
