"""The changes between two dumps of maps, as lines for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from bpfsvc.inspect.records import Records, Row, Value
from bpfsvc.inspect.tables import cell_text

_Key = tuple[Row, int]
"""The columns that identify a row, and a number, where several rows have the same columns."""


class Change(NamedTuple):
    """One row that has been ``added``, ``removed``, or ``changed``.

    ``row``: its values by the names of the columns; of a removed row the last ones. ``before``: the
    earlier values of the columns that have changed.
    """

    kind: str
    map: str
    row: dict[str, Value]
    before: dict[str, Value]


class Changes:
    """Compares each dump of some maps with the dump before."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[tuple[str, ...], dict[_Key, Row]]] = {}

    def update(self, dumped: Iterable[Records]) -> Iterator[Change]:
        """Yield the changes since the last call; nothing the first time.

        Durations change all the time and are not compared. If the columns of a map differ, because
        another build was loaded, the comparison of this map begins anew.
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
    """Yield a line for each change: time, kind, map and values; of changed values, both."""
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
