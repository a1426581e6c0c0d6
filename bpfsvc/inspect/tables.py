"""Records as text for people: aligned, complete, and a line for each row.

A terminal that is too narrow gets the same lines folded (:func:`folded`). Own code, because rich
takes 40 seconds for the connections of a busy node, and cuts addresses to the width of the
terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from bpfsvc.inspect.records import Records, Value

GAP = "  "
_EMPTY = "-"
_FOLD = "        "
"""Before the rest of a folded line."""


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


def folded(pieces: Iterable[str], width: int) -> Iterator[str]:
    """Yield lines of at most ``width``; the rest of a longer line follows, indented.

    All rows of a table are folded before one column, or, where columns are not aligned, each line
    by itself: between columns, or else behind a comma or a space.
    """
    for is_blank, group in groupby("".join(pieces).splitlines(), lambda line: not line):
        lines = [*group]
        column = 0 if is_blank or max(map(len, lines)) <= width else _common_fold(lines, width)
        for line in lines:
            yield from _folded_line(line, width, column if len(line) > column else 0)


def _folded_line(line: str, width: int, column: int) -> Iterator[str]:
    """Yield a line; ``column``: where to fold it first, 0 for the best position."""
    indent, rest = "", line
    while column or len(indent) + len(rest) > width:
        column = column or _fold_at(rest, width - len(indent))
        yield f"{indent}{rest[:column].rstrip()}\n"
        indent, rest, column = _FOLD, rest[column:].lstrip(), 0
    yield f"{indent}{rest}".rstrip() + "\n"


def _common_fold(lines: Sequence[str], width: int) -> int:
    """Return the last position up to ``width`` where a column of all lines begins; 0 for none."""
    for column in range(width, 2 * len(_FOLD), -1):
        long_lines = [line for line in lines if len(line) > column]
        if all(not line[column - len(GAP) : column].strip() for line in long_lines) and any(
            line[column] != " " for line in long_lines
        ):
            return column
    return 0


def _fold_at(text: str, room: int) -> int:
    """Return where to fold a text that has no room; not inside of its indentation."""
    indentation = len(text) - len(text.lstrip())
    for separator, behind in ((GAP, 0), (",", 1), (" ", 0)):
        at = text.rfind(separator, indentation, room)
        if at > indentation:
            return at + behind
    return room
