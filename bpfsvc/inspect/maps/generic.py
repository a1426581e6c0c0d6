"""Maps without a view of their own, and fields that a view does not know: shown by their names."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bpfsvc.datapath.maps.layout import MapLayout, Record
from bpfsvc.inspect.fields import (
    Fields,
    address_text,
    chooser,
    names,
    protocol_text,
    text,
)
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row, Value
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.services.plans.registry import MAPS, SERVICES

_ADDRESS = "16s"
_KEY, _SERVICE = "key", "service"
_ANONYMOUS = "value"
"""The name the layout gives to a key or value that is a plain number."""

_BY_SERVICE = {
    service_map.name
    for service_map in MAPS
    if service_map is not SERVICES
    and service_map.fields[: service_map.key_fields] == ("service_id",)
}
"""Maps with a service id as their key."""

_SETS = {
    service_map.name
    for service_map in MAPS
    if service_map.key_fields == len(service_map.fields) and not service_map.counted
}
"""Sets: if their values are plain numbers, the numbers say nothing."""


_Columns = Callable[[bytes], Row]


class Extras:
    """Fields of a known map that its view does not know, as further columns."""

    def __init__(self, columns: tuple[str, ...], readers: tuple[_Columns, _Columns]) -> None:
        self.columns = columns
        self._key, self._value = readers

    def values(self, key: bytes, value: bytes) -> Row:
        """Return the cells for one entry of the map."""
        return self._key(key) + self._value(value) if self.columns else ()


def extras(layout: MapLayout, key: Iterable[str], value: Iterable[str]) -> Extras:
    """Return the fields of ``layout`` that are not among those named."""
    keys = tuple(name for name in names(layout.key) if name not in set(key))
    values = tuple(name for name in names(layout.value) if name not in set(value))
    readers = (_cells(layout.key, keys), _cells(layout.value, values))
    return Extras(keys + values, readers)


def known_entries(
    reader: Reader, name: str, key: tuple[str, ...], value: tuple[str, ...], *hidden: str
) -> tuple[tuple[str, ...], Iterator[tuple[Fields, Row]]]:
    """Return the columns of :class:`Extras`, and for each entry the known fields and these cells.

    The known fields of an entry are the fields ``key`` and the fields ``value``. ``hidden``: fields
    of the value that a view leaves out on purpose.
    """
    layout = reader.layout.maps[name]
    more = extras(layout, key, (*value, *hidden))
    read_key, read_value = chooser(layout.key, key), chooser(layout.value, value)
    entries = (
        (read_key(raw_key) + read_value(raw), more.values(raw_key, raw))
        for raw_key, raw in reader.entries(name)
    )
    return more.columns, entries


def generic(reader: Reader, name: str) -> Records:
    """Return a map as its layout describes it.

    Numbers of per-CPU values are summed. Entries of arrays that are all zero are left out: they
    were never written. A field named ``service`` is a service id, and shown by its name.
    """
    layout = reader.layout.maps[name]
    keys, values = names(layout.key), names(layout.value)
    if name in _SETS and values == (_ANONYMOUS,):
        values = ()
    key, value = _cells(layout.key, keys), _cells(layout.value, values)
    per_cpu = layout.type.startswith("percpu")
    array = layout.type.endswith("array")
    rows: list[tuple[Any, Row]] = []
    for raw_key, raw in reader.entries(name):
        if array and not any(raw):
            continue
        cells = _added([value(part) for part in layout.cpu_values(raw)]) if per_cpu else value(raw)
        order = int.from_bytes(raw_key, sys.byteorder) if array else raw_key
        rows.append((order, key(raw_key) + cells))
    columns = tuple(_key_name(name) if field == _ANONYMOUS else field for field in keys) + values
    shown = [row for _, row in sorted(rows, key=lambda row: row[0])]
    if _SERVICE in columns:
        shown = _with_names(shown, columns.index(_SERVICE), ServiceNames(reader))
    return Records(name, columns, shown, keys=len(keys))


def _key_name(name: str) -> str:
    """Return the name of a key that is a plain number."""
    return _SERVICE if name in _BY_SERVICE else _KEY


def _with_names(rows: list[Row], at: int, service_names: ServiceNames) -> list[Row]:
    """Return rows with the names of service ids in place of the service ids in one column."""
    return [
        (
            *row[:at],
            service_names[cell] if isinstance(cell := row[at], int) else cell,
            *row[at + 1 :],
        )
        for row in rows
    ]


def _added(parts: list[Row]) -> Row:
    """Return the sums of numbers over all CPUs; of other values the first that is not empty."""
    cells: list[Value] = []
    for column in zip(*parts, strict=True):
        numbers = [cell for cell in column if isinstance(cell, int)]
        values = (cell for cell in column if cell)
        cells.append(sum(numbers) if len(numbers) == len(column) else next(values, ""))
    return tuple(cells)


def _cells(record: Record, wanted: tuple[str, ...]) -> _Columns:
    choose = chooser(record, wanted)
    formats = {name: kind for name, kind in record.fields if name}
    shown = tuple(_reading(name, formats[name]) for name in wanted)

    def cells(data: bytes) -> Row:
        values: Fields = choose(data)
        return tuple(show(value) for show, value in zip(shown, values, strict=True))

    return cells


def _reading(name: str, kind: str) -> Callable[[int | bytes], Value]:
    if name.rpartition(".")[2] == "protocol":
        return lambda value: protocol_text(int(value))
    if kind == _ADDRESS:
        return lambda value: address_text(bytes(value)) if isinstance(value, bytes) else value
    if kind.endswith("s"):
        return lambda value: _words(value) if isinstance(value, bytes) else value
    return lambda value: value if isinstance(value, int) else value.hex()


def _words(value: bytes) -> str:
    """Return a text as text, anything else as hexadecimal digits."""
    words = text(value)
    rest = value[len(words) :]
    return words if words.isascii() and words.isprintable() and not any(rest) else value.hex()
