"""The page, the Markdown document and the CSV.

Page and document are made from the templates beside this file. ``docs/benchmarks.md`` is such a
document, made anew from each full run.
"""

from __future__ import annotations

import csv as sheets
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from bpfsvc.devtools.bench.aims import aims
from bpfsvc.devtools.bench.figures import Spread
from bpfsvc.devtools.bench.report.summary import summary
from bpfsvc.devtools.bench.report.tables import (
    LEGEND,
    Figure,
    all_losses,
    compared,
    losses,
    tables,
)
from bpfsvc.devtools.bench.report.text import (
    AIM_HEADS,
    COMMAND,
    JUDGED,
    LOSS_HEADS,
    aim_row,
    remarks,
    setting,
)
from bpfsvc.devtools.bench.results import Cell, Results

_PERCENTILES = ("50", "90", "99", "99.9")


def html_page(results: Results, plots: Sequence[Any]) -> str:
    """Return the page as HTML. Plots have a title, a text and SVG that is put in as it is."""
    return _render("page.html", results, plots=plots)


def markdown(results: Results) -> str:
    """Return the whole document."""
    return _render("document.md", results).rstrip("\n") + "\n"


def csv(results: Results) -> str:
    """Return a line for each cell, and heads; ``values`` of the rounds are separated by spaces."""
    written = io.StringIO()
    heads = _line(results, Cell("", "", "", 0, "", (0.0,)))
    sheet = sheets.DictWriter(written, [*heads], lineterminator="\n")
    sheet.writeheader()
    sheet.writerows(_line(results, cell) for cell in results.find())
    return written.getvalue()


def _line(results: Results, cell: Cell) -> dict[str, object]:
    """Return a line of the CSV by its heads."""
    spread = cell.spread
    ratio = Spread.of(cell.ratios) if cell.ratios else None
    latencies = {key: _number(cell.latency.get(key)) for key in _PERCENTILES}
    return {
        "suite": cell.suite,
        "kind": cell.kind,
        "where": cell.where,
        "mode": cell.mode,
        "services": cell.services,
        "clients": cell.clients,
        "unit": cell.unit,
        "rounds": len(cell.values),
        "median": _number(spread.median),
        "quarter": _number(spread.quarter),
        "three_quarters": _number(spread.three_quarters),
        "low": _number(spread.low),
        "high": _number(spread.high),
        "reference": cell.reference,
        "ratio": _number(ratio and ratio.median),
        "ratio_quarter": _number(ratio and ratio.quarter),
        "ratio_three_quarters": _number(ratio and ratio.three_quarters),
        "cpu_us": _number(Spread.of(cell.cpu).median if cell.cpu else None),
        **{f"latency_us_{key}": text for key, text in latencies.items()},
        "loses_to": " ".join(loss.against for loss in losses(results, cell)),
        "values": " ".join(map(_number, cell.values)),
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _render(name: str, results: Results, **more: Any) -> str:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=name.endswith(".html"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"plain": _plain, "entry": _entry}
    judged = aims(results)
    return templates.get_template(name).render(
        setting=setting(results),
        aim_heads=AIM_HEADS,
        aims=[(aim.reached, aim_row(aim)) for aim in judged],
        loss_heads=LOSS_HEADS,
        losses=all_losses(results),
        compared=compared(results),
        judged=JUDGED,
        legend=LEGEND,
        summary=summary(results),
        tables=tables(results),
        remarks=remarks(results),
        method=Path(__file__).with_name("method.md").read_text().split("\n\n"),
        command=COMMAND,
        **more,
    )


def _plain(text: str) -> str:
    """Return text without bars, brackets and line ends that Markdown would interpret."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def _entry(figure: Figure | None) -> str:
    """Return an entry of a table; an entry that loses is bold."""
    if figure is None:
        return ""
    text = " ".join(filter(None, figure.parts))
    return _plain(f"**{text} {figure.signs}**" if figure.signs else text)
