"""Where connections spill over from the near endpoints to all that serve."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple

from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.inspect.fields import chooser, lacks
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.services.entries import CLIENTS
from bpfsvc.services.scheduling.spill import overload_text

SPILLING = (*(f"{who}.spills" for who in CLIENTS), "counted")
"""Fields of a frontend; builds that have none know no spilling over."""

KEY = ("service", "generation")

_VALUE = ("first", "size", "overload")

SHOWN = (
    *("first", "size", "near_first", "near_size", "far_trials", "overload", "inactive"),
    *("compared", "near", "counters"),
)
"""Fields of an entry that its view needs."""


class FrontendSpilling(NamedTuple):
    """``clients``: whether connections of each class spill over. ``counted``: all are counted."""

    clients: tuple[bool, ...] = (False,) * len(CLIENTS)
    counted: bool = False


_NONE = FrontendSpilling()


class SpillRange(NamedTuple):
    """The slots of all endpoints that serve, and the overload in thousandths."""

    first: int
    size: int
    overload: int


Spills = Mapping[tuple[int, int], SpillRange]
"""By service id and generation."""


def spilling_reader(layout: Layout) -> Callable[[bytes], FrontendSpilling]:
    """Return a function from a value of map ``frontends`` to which connections spill over."""
    record = layout.maps["frontends"].value
    if lacks(record, SPILLING):
        return lambda _value: _NONE
    choose = chooser(record, SPILLING)

    def read(value: bytes) -> FrontendSpilling:
        *clients, counted = choose(value)
        return FrontendSpilling(tuple(map(bool, clients)), bool(counted)) if counted else _NONE

    return read


def spill_ranges(reader: Reader) -> Spills:
    """Return to what connections spill over."""
    layout = reader.layout.maps.get("spills")
    if layout is None or lacks(layout.key, KEY) or lacks(layout.value, _VALUE):
        return {}
    key, value = chooser(layout.key, KEY), chooser(layout.value, _VALUE)
    found = {}
    for raw_key, raw in reader.entries("spills"):
        service, generation = key(raw_key)
        found[service, generation] = SpillRange(*value(raw))
    return found


def spills(reader: Reader) -> Records:
    """Return for each service port to what connections spill over, and whose loads decide it.

    ``all`` and ``near`` are slots; ``near_counters`` and ``far_counters`` ids of counters.
    """
    layout = reader.layout.maps["spills"]
    key, value, names = chooser(layout.key, KEY), chooser(layout.value, SHOWN), ServiceNames(reader)
    rows: list[Row] = []
    for raw_key, raw in reader.entries("spills"):
        service, generation = key(raw_key)
        first, size, near_first, near_size, far_trials, overload, inactive, *summed = value(raw)
        compared, near, packed = summed
        ids = array("I", packed)
        rows.append(
            (
                *(names[service], generation, overload_text(overload)),
                *(_range(first, size), _range(near_first, near_size), far_trials),
                "active and inactive" if inactive else "active",
                *(tuple(map(str, ids[:near])), tuple(map(str, ids[near:compared]))),
            )
        )
    return Records("spills", (*KEY, *_COLUMNS), sorted(rows))


_COLUMNS = (
    *("overload", "all", "near", "far_trials", "connections"),
    *("near_counters", "far_counters"),
)


def _range(first: int, size: int) -> str:
    return f"{first}-{first + size - 1}" if size else "-"
