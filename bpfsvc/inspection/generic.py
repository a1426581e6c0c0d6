"""Maps and fields of other versions: shown by their names, without knowing what they are for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from bpfsvc.datapath.layout import MapLayout, Record
from bpfsvc.inspection.fields import (
    Fields,
    address_text,
    chooser,
    cpu_values,
    names,
    protocol_text,
    text,
)
from bpfsvc.inspection.reader import Reader
from bpfsvc.inspection.records import Records, Row, Value

_ADDRESS = "16s"
_KEY = "key"
_ANONYMOUS = "value"
"""The name the layout gives to a key or value that is a plain number."""


_Columns = Callable[[bytes], Row]


class Extras:
    """Fields of a known map that its view does not know, as further columns."""

    def __init__(self, columns: tuple[str, ...], readers: tuple[_Columns, _Columns]) -> None:
        self.columns = columns
        self._key, self._value = readers

    def values(self, key: bytes, value: bytes) -> Row:
        """Give the cells for one row of the map."""
        return self._key(key) + self._value(value) if self.columns else ()


def extras(layout: MapLayout, key: Iterable[str], value: Iterable[str]) -> Extras:
    """Find the fields of ``layout`` that are none of those named."""
    keys = tuple(name for name in names(layout.key) if name not in set(key))
    values = tuple(name for name in names(layout.value) if name not in set(value))
    readers = (_cells(layout.key, keys), _cells(layout.value, values))
    return Extras(keys + values, readers)


def generic(reader: Reader, name: str) -> Records:
    """Give a map as its layout describes it.

    Numbers of per-CPU values are summed. Rows of arrays that are all zero were never written, and
    are left out.
    """
    layout = reader.layout.maps[name]
    keys, values = names(layout.key), names(layout.value)
    key, value = _cells(layout.key, keys), _cells(layout.value, values)
    per_cpu = layout.type.startswith("percpu")
    array = layout.type.endswith("array")
    rows: list[tuple[Any, Row]] = []
    for raw_key, raw in reader.rows(name):
        if array and not any(raw):
            continue
        cells = _added([value(part) for part in cpu_values(layout, raw)]) if per_cpu else value(raw)
        order = int.from_bytes(raw_key, sys.byteorder) if array else raw_key
        rows.append((order, key(raw_key) + cells))
    columns = tuple(_KEY if each == _ANONYMOUS else each for each in keys) + values
    return Records(name, columns, [row for _, row in sorted(rows, key=lambda each: each[0])])


def _added(parts: list[Row]) -> Row:
    """Sum the numbers of all CPUs; of anything else the first that says something stands."""
    cells: list[Value] = []
    for column in zip(*parts, strict=True):
        numbers = [cell for cell in column if isinstance(cell, int)]
        said = (cell for cell in column if cell)
        cells.append(sum(numbers) if len(numbers) == len(column) else next(said, ""))
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
    """Give a text as text, anything else as hexadecimal digits."""
    words = text(value)
    rest = value[len(words) :]
    return words if words.isascii() and words.isprintable() and not any(rest) else value.hex()
