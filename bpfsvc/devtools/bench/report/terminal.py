"""The report on a terminal: readable at 100 columns, with colours and without."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bpfsvc.devtools.bench.aims import aims
from bpfsvc.devtools.bench.report.summary import summary
from bpfsvc.devtools.bench.report.tables import (
    LEGEND,
    Figure,
    Table,
    all_losses,
    compared,
    tables,
)
from bpfsvc.devtools.bench.report.text import AIM_HEADS, JUDGED, aim_row, remarks, setting
from bpfsvc.devtools.bench.results import Results

_WIDTH = 100
_NAME = 16  # columns of a mode's name and the space around it
_ENTRY = 20  # columns of an entry, likewise
_STYLES = {True: "green", False: "bold red", None: "dim"}


def terminal(results: Results, console: Console | None = None) -> None:
    """Print the report, by default to standard output."""
    console = console or Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:  # a file has no width of its own
        console.width = _WIDTH
    for table in filter(None, (summary(results), *tables(results))):
        console.print(Text(table.title, style="bold"))
        console.print(Text(f"  {table.parts}", style="dim"))
        at_once = max(1, (console.width - _NAME) // _ENTRY)
        for start in range(0, len(table.heads), at_once):
            console.print(_columns(table, slice(start, start + at_once)))
    lost = len(all_losses(results))
    nothing = "No losing cell." if compared(results) else "Nothing was compared."
    console.print(Text(f"{lost} losing cells. {LEGEND}\n" if lost else f"{nothing}\n"))
    judged = _bare_table()
    judged.title, judged.title_justify = "Aims", "left"
    for head in AIM_HEADS:
        judged.add_column(head, no_wrap=head not in ("aim", "result"))
    for aim in aims(results):
        judged.add_row(*aim_row(aim), style=_STYLES[aim.reached])
    console.print(judged)
    console.print(Text(f"\n{JUDGED}\n", style="dim"))
    for line in (*(f"* {remark}" for remark in remarks(results)), *setting(results)):
        console.print(Text(line))


def _bare_table() -> RichTable:
    return RichTable(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1))


def _columns(table: Table, columns: slice) -> RichTable:
    """Return some columns of a table: a terminal may have less room than there are sizes."""
    made = _bare_table()
    made.add_column("")
    for head in table.heads[columns]:
        made.add_column(head, justify="right", no_wrap=True)
    widths = [_widths(column) for column in zip(*(row.figures for row in table.rows), strict=True)]
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        made.add_row(Text(group, style="italic"))
        for row in rows:
            pairs = zip(row.figures[columns], widths[columns], strict=True)
            entries = (_entry(figure, width) for figure, width in pairs)
            made.add_row(Text(f"  {row.name}"), *entries)
    made.add_row("")
    return made


def _entry(figure: Figure | None, widths: Sequence[int]) -> Text:
    """Align the parts of an entry below each other, and its signs in a column of their own."""
    if figure is None:
        return Text("·  ", style="dim")
    parts = " ".join(part.rjust(width) for part, width in zip(figure.parts, widths, strict=True))
    return Text(f"{parts} {figure.signs:<2}", style="bold red" if figure.signs else "")


def _widths(figures: Sequence[Figure | None]) -> list[int]:
    parts = [figure.parts for figure in figures if figure]
    return [max(map(len, column)) for column in zip(*parts, strict=True)]
