"""What has changed in the maps between two dumps, as lines for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from bpfsvc.inspect.records import Records, Row, Value
from bpfsvc.inspect.tables import cell_text

_Key = tuple[Row, int]
"""The columns that say which row it is, and a number, where several have the same."""


class Change(NamedTuple):
    """One row that is there now (``added``), no more (``removed``), or has other values.

    ``row``: its values by the names of the columns, the present ones if it is there. ``before``:
    those that were others.
    """

    kind: str
    map: str
    row: dict[str, Value]
    before: dict[str, Value]


class Changes:
    """Compares dumps of the same maps, each with the one before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[tuple[str, ...], dict[_Key, Row]]] = {}

    def update(self, dumped: Iterable[Records]) -> Iterator[Change]:
        """Yield what has changed since the last call; nothing the first time.

        Durations change all the time and are not compared. A map that comes with other columns, of
        another build, begins anew.
        """
        for records in dumped:
            now = _by_key(records)
            columns, before = self._before.get(records.name, (records.columns, now))
            self._before[records.name] = records.columns, now
            if columns == records.columns:
                yield from _compare(records, before, now)


def _compare(records: Records, before: dict[_Key, Row], now: dict[_Key, Row]) -> Iterator[Change]:
    columns = records.columns
    for key, row in before.items():
        if key not in now:
            yield Change("removed", records.name, dict(zip(columns, row, strict=True)), {})
    for key, row in now.items():
        was = before.get(key)
        if was is None:
            yield Change("added", records.name, dict(zip(columns, row, strict=True)), {})
        elif was != row:
            differs = {
                name: old
                for name, old, new in zip(columns, was, row, strict=True)
                if old != new and name not in records.seconds
            }
            if differs:
                values = dict(zip(columns, row, strict=True))
                yield Change("changed", records.name, values, differs)


def _by_key(records: Records) -> dict[_Key, Row]:
    number: Counter[Row] = Counter()
    rows: dict[_Key, Row] = {}
    for row in records.rows:
        key = row[: records.keys] if records.keys else row
        rows[key, number[key]] = row
        number[key] += 1
    return rows


def write_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a line for each change: time, kind, map and values, and of a change both values."""
    for change in changes:
        cells = (
            f"{name}={cell_text(change.before[name])}->{cell_text(value)}"
            if name in change.before
            else f"{name}={cell_text(value)}"
            for name, value in change.row.items()
        )
        yield f"{_now():%H:%M:%S} {change.kind:<7} {change.map} {' '.join(cells)}\n"


def write_json_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a JSON object for each change, one per line."""
    for change in changes:
        line = {
            "time": _now().isoformat(timespec="seconds"),
            "change": change.kind,
            "map": change.map,
            "row": change.row,
        }
        if change.before:
            line["before"] = change.before
        yield json.dumps(line) + "\n"


def _now() -> datetime:
    return datetime.now(UTC)


CHANGE_WRITERS: dict[str, Callable[[Iterable[Change]], Iterator[str]]] = {
    "table": write_lines,
    "json": write_json_lines,
}
