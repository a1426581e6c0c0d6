"""Where connections spill over from the near endpoints to all that serve."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.inspect.fields import chooser, lacks
from bpfsvc.inspect.reader import Reader
from bpfsvc.services.entries import CLIENTS

SPILLING = (*(f"{who}.spills" for who in CLIENTS), "counted")
"""Fields of a frontend; builds that have none know no spilling over."""

_KEY, _VALUE = ("service", "generation"), ("first", "size", "overload")


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
    if layout is None or lacks(layout.key, _KEY) or lacks(layout.value, _VALUE):
        return {}
    key, value = chooser(layout.key, _KEY), chooser(layout.value, _VALUE)
    found = {}
    for raw_key, raw in reader.entries("spills"):
        service, generation = key(raw_key)
        found[service, generation] = SpillRange(*value(raw))
    return found
