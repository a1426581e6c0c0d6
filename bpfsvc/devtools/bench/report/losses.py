"""Where bpfsvc loses: what a reader should look for first."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.devtools.bench.figures import Spread
from bpfsvc.devtools.bench.modes import AGENTS, BASELINES, OURS
from bpfsvc.devtools.bench.results import Cell, Results, ratios

TO_REFERENCE = "-"
TO_BASELINE = "!"
LEGEND = (
    f"{TO_REFERENCE} slower than the reference, {TO_BASELINE} worse than the best baseline "
    "(medians of the ratios of rounds)"
)
"""What the signs mean."""


class Loss(NamedTuple):
    """A cell of ours that is worse than another mode's, by the median ratio of rounds."""

    cell: Cell
    sign: str
    against: str
    ratio: float


def losses(results: Results, cell: Cell) -> list[Loss]:
    """Return the losses of a cell: none if it is not ours, at most one of each sign."""
    return [
        each
        for each in _comparisons(results, cell)
        if (each.ratio < 1 if cell.more_is_better else each.ratio > 1)
    ]


def all_losses(results: Results) -> list[Loss]:
    """Return the losses of all cells, the worst first."""
    found = [loss for cell in results.cells for loss in losses(results, cell)]
    return sorted(found, key=lambda loss: min(loss.ratio, 1 / loss.ratio) if loss.ratio else 0)


def compared(results: Results) -> bool:
    """Return True if anything was compared; if not, "no loss" means nothing."""
    return any(_comparisons(results, cell) for cell in results.cells)


def _comparisons(results: Results, cell: Cell) -> list[Loss]:
    """Return what would be the losses of a cell if it were worse.

    Only rates have a reference to lose to: an empty program or a dropped packet is a floor. The
    best baseline is the one that this cell is worst against. What is to no Service has none.
    """
    if cell.mode not in AGENTS or not cell.values:
        return []
    found = []
    ratio = cell.ratio
    if ratio is not None and cell.more_is_better:
        found.append(Loss(cell, TO_REFERENCE, cell.reference, ratio))
    against = [
        (ratio, mode)
        for mode in sorted(BASELINES if cell.mode in OURS else ())
        if (ratio := _ratio(results, cell, mode)) is not None
    ]
    if against:
        ratio, mode = min(against) if cell.more_is_better else max(against)
        found.append(Loss(cell, TO_BASELINE, mode, ratio))
    return found


def _ratio(results: Results, cell: Cell, mode: str) -> float | None:
    """Compare with a mode; changes have no rounds, and several origins (API, files)."""
    if cell.suite == "change":
        other = results.one(suite="change", kind=cell.kind, services=cell.services, mode=mode)
        return cell.median / other.median if other and other.median else None
    beside = results.beside(cell, mode)
    rounds = ratios(cell, beside) if beside else ()
    return Spread.of(rounds).median if rounds else None
