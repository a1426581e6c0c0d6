"""The report on a terminal: readable at 100 columns, with colours and without."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bpfsvc.devtools.bench.aims import Aim, aims
from bpfsvc.devtools.bench.report.losses import LEGEND, all_losses, compared
from bpfsvc.devtools.bench.report.summary import summary
from bpfsvc.devtools.bench.report.tables import Figure, Table, tables
from bpfsvc.devtools.bench.report.text import JUDGED, aim_row, remarks, setting
from bpfsvc.devtools.bench.results import Results

WIDTH = 100
_NAME = 16  # columns of a mode's name and what is around it
_ENTRY = 20  # of an entry, likewise


def terminal(results: Results, console: Console | None = None) -> None:
    """Print the report, by default to standard output."""
    console = console or _console()
    first = summary(results)
    for table in (*([first] if first else []), *tables(results)):
        _print(console, table)
    if lost := len(all_losses(results)):
        console.print(Text(f"{lost} losing cells. {LEGEND}"))
    else:
        console.print("No losing cell." if compared(results) else "Nothing was compared.")
    console.print()
    console.print(_aims(aims(results)))
    console.print(Text(f"\n{JUDGED}\n", style="dim"))
    for line in (*(f"* {each}" for each in remarks(results)), *setting(results)):
        console.print(Text(line))


def _console() -> Console:
    """Open standard output; where it has no width of its own (a file), take the usual one."""
    console = Console(file=sys.stdout, highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _print(console: Console, table: Table) -> None:
    """Print a table, in several parts if there are more sizes than columns."""
    at_once = max(1, (console.width - _NAME) // _ENTRY)
    console.print(Text(table.title, style="bold"))
    console.print(Text(f"  {table.parts}", style="dim"))
    for start in range(0, len(table.heads), at_once):
        console.print(_part(table, slice(start, start + at_once)))


def _part(table: Table, columns: slice) -> RichTable:
    made = RichTable(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1))
    made.add_column("")
    for head in table.heads[columns]:
        made.add_column(head, justify="right", no_wrap=True)
    widths = [
        _widths([line.figures[at] for line in table.lines])
        for at in range(len(table.heads))[columns]
    ]
    group = ""
    for line in table.lines:
        if line.group != group:
            if group:
                made.add_row("")
            made.add_row(Text(line.group, style="italic"))
            group = line.group
        pairs = zip(line.figures[columns], widths, strict=True)
        made.add_row(Text(f"  {line.name}"), *(_entry(figure, width) for figure, width in pairs))
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


def _aims(found: Sequence[Aim]) -> RichTable:
    made = RichTable(
        title="Aims", box=SIMPLE, pad_edge=False, show_edge=False, title_justify="left"
    )
    made.add_column("aim", min_width=30)
    for head in ("goal", "measured", "quartiles"):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("", min_width=16)
    styles = {True: "green", False: "bold red", None: "dim"}
    for aim in found:
        made.add_row(*aim_row(aim), style=styles[aim.reached])
    return made
