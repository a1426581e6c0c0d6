"""The report as Markdown: what ``docs/benchmarks.md`` holds, made anew from each full run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bpfsvc.bench import words
from bpfsvc.bench.aims import aims
from bpfsvc.bench.report import aimed
from bpfsvc.bench.report.losses import all_losses, compared, legend
from bpfsvc.bench.report.numbers import factor, measured
from bpfsvc.bench.report.prose import COMMAND, METHOD, remarks, setting
from bpfsvc.bench.report.tables import Figure, Table, about, heading, tables
from bpfsvc.bench.results import Results


def markdown(results: Results, explained: str = "") -> str:
    """Give the whole document, ending with a line end.

    ``explained``: Markdown to put below the aims, on what a missed one is spent.
    """
    return "\n".join(_lines(results, explained)).rstrip("\n") + "\n"


def _lines(results: Results, explained: str) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield "Made by `bpfsvc.bench` from the figures of one run."
    yield ""
    yield from (f"* {line}" for line in setting(results))
    yield ""
    yield "Contents: [aims](#aims), [where bpfsvc loses](#where-bpfsvc-loses), "
    yield "[figures](#figures), [how it was measured](#how-it-was-measured), "
    yield "[how to repeat it](#how-to-repeat-it)"
    yield ""
    yield from ("## Aims", "")
    rows = [aimed.row(aim) for aim in aims(results)]
    yield from _grid(("aim", "goal", "measured", "quartiles", "result"), rows)
    yield from (aimed.JUDGED, "")
    if explained:
        yield from (explained.strip("\n"), "")
    yield from ("## Where bpfsvc loses", "")
    yield from _losing(results)
    yield from ("## Figures", "", f"Signs: {legend()}.", "")
    for table in tables(results):
        yield from _table(table)
    if found := remarks(results):
        yield from ("## Notes", "")
        yield from (f"* {_plain(line)}" for line in found)
        yield ""
    yield from ("## How it was measured", "")
    for paragraph in METHOD:
        yield from (paragraph, "")
    yield from ("## How to repeat it", "", "As root, in a checkout:", "")
    yield from ("```sh", COMMAND, "```", "")


def _losing(results: Results) -> Iterator[str]:
    found = all_losses(results)
    if not found:
        nowhere = "In no cell of this run." if compared(results) else "Nothing was compared."
        yield from (nowhere, "")
        return
    yield from _grid(
        ("where", "size", "clients", "mode", "measured", "against", "ratio"),
        (
            (
                f"{heading(loss.cell.suite)}: {about(loss.cell)}",
                words.services(loss.cell.services),
                str(loss.cell.clients),
                loss.cell.mode,
                f"{measured(loss.cell)} {loss.cell.unit}",
                loss.against,
                factor(loss.ratio),
            )
            for loss in found
        ),
    )


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {table.title}", "", f"Each entry: {table.parts}.", "")
    grouped = any(line.group for line in table.lines)
    yield from _grid(
        (*(("",) if grouped else ()), "mode", *table.heads),
        (
            (*((line.group,) if grouped else ()), line.name, *map(_entry, line.figures))
            for line in table.lines
        ),
        numbers=len(table.heads),
    )


def _entry(figure: Figure | None) -> str:
    if figure is None:
        return ""
    text = " ".join(filter(None, figure.parts))
    return f"**{text} {figure.signs}**" if figure.signs else text


def _grid(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> Iterator[str]:
    """Give a table; its last ``numbers`` columns are set to the right."""
    rule = ["---"] * (len(heads) - numbers) + ["---:"] * numbers
    yield _row(heads)
    yield _row(rule)
    for row in rows:
        yield _row([_plain(entry) for entry in row])
    yield ""


def _row(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"


def _plain(text: str) -> str:
    """Take from bars, brackets and line ends what Markdown would read into them."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
