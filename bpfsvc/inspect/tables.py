"""Records as text for people: aligned, complete, and the same on a terminal and in a pipe.

Own code, because rich takes 40 seconds for the connections of a busy node, and cuts addresses to
the width of the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.inspect.records import Records, Value

GAP = "  "
_EMPTY = "-"


def write_tables(dumped: Iterable[Records]) -> Iterator[str]:
    """Yield the text of several views in pieces, line ends included."""
    separator = ""
    for records in dumped:
        yield f"{separator}{records.name} ({len(records.rows)})\n"
        yield from _table(records)
        separator = "\n"


def _table(records: Records) -> Iterator[str]:
    if not records.rows:
        return
    durations = [name in records.seconds for name in records.columns]
    lines = [tuple(name.upper() for name in records.columns)]
    for row in records.rows:
        cells = zip(row, durations, strict=True)
        lines.append(tuple(duration_text(c) if is_time else cell_text(c) for c, is_time in cells))
    right = [_is_number(records, at) for at in range(len(records.columns))]
    pattern = line_pattern(lines, right)
    for line in lines:
        yield pattern.format(*line).rstrip() + "\n"


def line_pattern(lines: Iterable[tuple[str, ...]], right: Iterable[bool]) -> str:
    """Return the format of lines; columns where ``right`` is true, as numbers, end at the right."""
    columns = zip(right, zip(*lines, strict=True), strict=True)
    return GAP.join(
        f"{{:{'>' if is_right else '<'}{max(map(len, column))}}}" for is_right, column in columns
    )


def _is_number(records: Records, column: int) -> bool:
    first = records.rows[0][column]
    return isinstance(first, int | float) and not isinstance(first, bool)


def cell_text(value: Value) -> str:
    """Return a value as a cell of a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(value) or _EMPTY
    return str(value) or _EMPTY


def duration_text(value: Value) -> str:
    """Return seconds as ``4.2s``, ``5m03s``, ``2h05m`` or ``3d04h``."""
    if not isinstance(value, int | float):
        return cell_text(value)
    if value < 60:
        return f"{value:.1f}s"
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
