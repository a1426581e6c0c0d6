"""CSV: one line for each cell, for whoever wants to compute something else from it."""

from __future__ import annotations

import csv as sheets
import io

from bpfsvc.bench.figures import Spread
from bpfsvc.bench.report.losses import losses
from bpfsvc.bench.results import Cell, Results

PERCENTILES = ("50", "90", "99", "99.9")
COLUMNS = (
    "suite",
    "kind",
    "where",
    "mode",
    "services",
    "clients",
    "unit",
    "rounds",
    "median",
    "quarter",
    "three_quarters",
    "low",
    "high",
    "reference",
    "ratio",
    "ratio_quarter",
    "ratio_three_quarters",
    "cpu_us",
    *(f"latency_us_{percent}" for percent in PERCENTILES),
    "loses_to",
    "values",
)


def csv(results: Results) -> str:
    """Give the sheet, with a line of heads; ``values`` are those of the rounds, by spaces."""
    written = io.StringIO()
    sheet = sheets.writer(written, lineterminator="\n")
    sheet.writerow(COLUMNS)
    for cell in results.cells:
        if cell.values:
            sheet.writerow(_line(results, cell))
    return written.getvalue()


def _line(results: Results, cell: Cell) -> list[object]:
    spread = cell.spread
    ratio = Spread.of(cell.ratios) if cell.ratios else None
    return [
        cell.suite,
        cell.kind,
        cell.where,
        cell.mode,
        cell.services,
        cell.clients,
        cell.unit,
        len(cell.values),
        _text(spread.median),
        _text(spread.quarter),
        _text(spread.three_quarters),
        _text(spread.low),
        _text(spread.high),
        cell.reference,
        _text(ratio and ratio.median),
        _text(ratio and ratio.quarter),
        _text(ratio and ratio.three_quarters),
        _text(Spread.of(cell.cpu).median if cell.cpu else None),
        *(_text(cell.latency.get(percent)) for percent in PERCENTILES),
        " ".join(loss.against for loss in losses(results, cell)),
        " ".join(map(_text, cell.values)),
    ]


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
