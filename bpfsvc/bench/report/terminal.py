"""The report for who waits at a terminal: readable at 100 columns, with colours and without."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from bpfsvc.bench.aims import Aim, aims
from bpfsvc.bench.report import aimed
from bpfsvc.bench.report.losses import all_losses, compared, legend
from bpfsvc.bench.report.prose import remarks, setting
from bpfsvc.bench.report.tables import Figure, Line, Table, tables
from bpfsvc.bench.results import Results

WIDTH = 100
_NAME = 16  # columns of a mode's name and what is around it
_ENTRY = 20  # of an entry, likewise


def terminal(results: Results, console: Console | None = None) -> None:
    """Print the report, by default to standard output."""
    console = console or _console()
    for table in tables(results):
        _show(console, table)
    console.print(Text(_lost(results)))
    console.print()
    console.print(_aims(aims(results)))
    console.print(Text(f"\n{aimed.JUDGED}\n", style="dim"))
    for line in remarks(results):
        console.print(Text(f"* {line}"))
    for line in setting(results):
        console.print(Text(line))


def _lost(results: Results) -> str:
    if lost := len(all_losses(results)):
        return f"{lost} losing cells. {legend()}"
    return "No losing cell." if compared(results) else "Nothing was compared."


def _console() -> Console:
    """Open standard output; where it has no width of its own (a file), take the usual one."""
    console = Console(file=sys.stdout, highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def _show(console: Console, table: Table) -> None:
    """Print a table, in several if there are more sizes than columns."""
    at_once = max(1, (console.width - _NAME) // _ENTRY)
    console.print(Text(table.title, style="bold"))
    console.print(Text(f"  {table.parts}", style="dim"))
    for start in range(0, len(table.heads), at_once):
        console.print(_part(table, slice(start, start + at_once)))


def _part(table: Table, columns: slice) -> Drawn:
    drawn = Drawn(box=SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1))
    drawn.add_column("")
    for head in table.heads[columns]:
        drawn.add_column(head, justify="right", no_wrap=True)
    widths = [
        _widths([line.figures[at] for line in table.lines])
        for at in range(len(table.heads))[columns]
    ]
    grouped = len({line.group for line in table.lines}) > 1 or table.lines[0].group
    group = None
    for line in table.lines:
        if grouped and line.group != group:
            if group is not None:
                drawn.add_row("")
            drawn.add_row(Text(line.group, style="italic"))
            group = line.group
        drawn.add_row(*_row(line, columns, widths))
    drawn.add_row("")
    return drawn


def _row(line: Line, columns: slice, widths: Sequence[Sequence[int]]) -> list[Text]:
    figures = line.figures[columns]
    return [
        Text(f"  {line.name}"),
        *(_entry(figure, width) for figure, width in zip(figures, widths, strict=True)),
    ]


def _entry(figure: Figure | None, widths: Sequence[int]) -> Text:
    """Align the parts of an entry below each other, and its signs in a place of their own."""
    if figure is None:
        return Text("·  ", style="dim")
    parts = " ".join(part.rjust(width) for part, width in zip(figure.parts, widths, strict=True))
    return Text(f"{parts} {figure.signs:<2}", style="bold red" if figure.signs else "")


def _widths(figures: Sequence[Figure | None]) -> list[int]:
    there = [figure.parts for figure in figures if figure]
    return [max(map(len, parts)) for parts in zip(*there, strict=True)]


def _aims(found: Sequence[Aim]) -> Drawn:
    drawn = Drawn(title="Aims", box=SIMPLE, pad_edge=False, show_edge=False, title_justify="left")
    drawn.add_column("aim", min_width=30)
    for head in ("goal", "measured", "quartiles"):
        drawn.add_column(head, justify="right", no_wrap=True)
    drawn.add_column("", min_width=16)
    styles = {True: "green", False: "bold red", None: "dim"}
    for aim in found:
        row = aimed.row(aim)
        drawn.add_row(
            row.text,
            row.goal,
            row.measured,
            row.quartiles,
            row.verdict,
            style=styles[aim.reached],
        )
    return drawn
