"""CSV: one line for each cell, from which anything else can be computed."""

from __future__ import annotations

import csv as sheets
import io

from bpfsvc.devtools.bench.figures import Spread
from bpfsvc.devtools.bench.report.losses import losses
from bpfsvc.devtools.bench.results import Cell, Results

PERCENTILES = ("50", "90", "99", "99.9")


def csv(results: Results) -> str:
    """Return the sheet, with a line of heads; ``values`` are those of the rounds, by spaces."""
    lines = [_line(results, cell) for cell in results.cells if cell.values]
    written = io.StringIO()
    empty = Cell("", "", "", 0, "", (0.0,))
    sheet = sheets.DictWriter(written, [*_line(results, empty)], lineterminator="\n")
    sheet.writeheader()
    sheet.writerows(lines)
    return written.getvalue()


def _line(results: Results, cell: Cell) -> dict[str, object]:
    """Return a line by its heads."""
    spread = cell.spread
    ratio = Spread.of(cell.ratios) if cell.ratios else None
    latencies = {each: _text(cell.latency.get(each)) for each in PERCENTILES}
    return {
        "suite": cell.suite,
        "kind": cell.kind,
        "where": cell.where,
        "mode": cell.mode,
        "services": cell.services,
        "clients": cell.clients,
        "unit": cell.unit,
        "rounds": len(cell.values),
        "median": _text(spread.median),
        "quarter": _text(spread.quarter),
        "three_quarters": _text(spread.three_quarters),
        "low": _text(spread.low),
        "high": _text(spread.high),
        "reference": cell.reference,
        "ratio": _text(ratio and ratio.median),
        "ratio_quarter": _text(ratio and ratio.quarter),
        "ratio_three_quarters": _text(ratio and ratio.three_quarters),
        "cpu_us": _text(Spread.of(cell.cpu).median if cell.cpu else None),
        **{f"latency_us_{each}": text for each, text in latencies.items()},
        "loses_to": " ".join(loss.against for loss in losses(results, cell)),
        "values": " ".join(map(_text, cell.values)),
    }


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
