"""The figures as tables, the same for terminal, page and documentation; and where bpfsvc loses.

One table for each kind of traffic and place: a row for each mode, a column for each size of
cluster, a group of rows for each number of clients. Every suite without traffic has one table for
each unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from bpfsvc.devtools.bench.figures import Spread, clients_text, services_text
from bpfsvc.devtools.bench.load.tool import FLOWS
from bpfsvc.devtools.bench.modes import AGENTS, BASELINES, KUBE_PROXIES, OURS
from bpfsvc.devtools.bench.report.text import digits, factor, measured, span
from bpfsvc.devtools.bench.results import Cell, Results, rank

SUITES = {
    "pods": "To a backend on the other node",
    "edge": "From outside to a NodePort",
    "agents": "CPU time of agents for an operation, a part of that above",
    "change": "From a change to changed packets",
    "start": "Start",
    "memory": "Memory",
}
"""The titles of the suites, in the order of every report."""
TRAFFIC = ("pods", "edge")
"""The suites with cells that are rates of several clients, against a reference."""
_OPERATIONS = {
    "connect": "connect, request, close",
    "request": "requests on one connection",
    "bulk": "one direction at full rate",
    "datagrams": "UDP packets, echoed",
    "questions": "UDP question and answer, a socket each",
}
_PLACES = {
    "pod": "from a pod",
    "node": "from the node itself",
    "remote": "backend on another node",
    "local": "backend on the node asked",
}
_TO_REFERENCE, _TO_BASELINE = "-", "!"
LEGEND = (
    f"{_TO_REFERENCE} slower than the reference, {_TO_BASELINE} worse than the best baseline "
    "(medians of the ratios of rounds)"
)
"""The meaning of the signs."""


class Figure(NamedTuple):
    """One entry: its parts, and the signs of its losses."""

    parts: tuple[str, ...]
    signs: str = ""


class Row(NamedTuple):
    """One row: the group it belongs to, its name, and an entry for each column or None."""

    group: str
    name: str
    figures: tuple[Figure | None, ...]


class Table(NamedTuple):
    """Figures under one title. ``parts``: the meaning of the parts of an entry."""

    title: str
    parts: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]


class Loss(NamedTuple):
    """A cell of bpfsvc that is worse than another mode's cell, by the median ratio of rounds."""

    cell: Cell
    sign: str
    against: str
    ratio: float

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a row, in the order of ``LOSS_HEADS``."""
        cell = self.cell
        return (
            title(cell),
            services_text(cell.services),
            clients_text(cell.clients),
            cell.mode,
            f"{measured(cell)} {cell.unit}",
            self.against,
            factor(self.ratio),
        )


def tables(results: Results) -> list[Table]:
    """Return all tables that have figures, suites without a title last."""
    made: list[Table] = []
    suites = {cell.suite for cell in results.find()}
    for suite in sorted(suites, key=lambda suite: ([*SUITES, suite].index(suite), suite)):
        groups: dict[tuple[str, str], list[Cell]] = {}
        for cell in results.find(suite=suite):
            key = (cell.kind, cell.where) if suite in TRAFFIC else (cell.unit, "")
            groups.setdefault(key, []).append(cell)
        for cells in groups.values():
            made += _traffic(results, cells) if suite in TRAFFIC else [_other(results, cells)]
    return made


def title(cell: Cell) -> str:
    """Return the suite of a cell, the kind of traffic, and from or to where."""
    return f"{SUITES.get(cell.suite, cell.suite)}: {_about(cell)}"


def all_losses(results: Results) -> list[Loss]:
    """Return the losses of all cells, the worst first."""
    lost = [loss for cell in results.cells for loss in losses(results, cell)]
    return sorted(lost, key=lambda loss: min(loss.ratio, 1 / loss.ratio) if loss.ratio else 0)


def compared(results: Results) -> bool:
    """Return True if anything was compared; if not, "no loss" means nothing."""
    return any(_comparisons(results, cell) for cell in results.cells)


def losses(results: Results, cell: Cell) -> list[Loss]:
    """Return the losses of a cell: none if it is not of bpfsvc, at most one of each sign."""
    return [
        loss
        for loss in _comparisons(results, cell)
        if (loss.ratio < 1 if cell.more_is_better else loss.ratio > 1)
    ]


def _comparisons(results: Results, cell: Cell) -> list[Loss]:
    """Return the comparisons of a cell: they are losses if the cell is worse.

    Only rates have a reference to lose to. The best baseline is the baseline that this cell is
    worst against. Traffic to no Service has no baseline.
    """
    if cell.mode not in AGENTS or not cell.values:
        return []
    made = []
    if cell.ratio is not None and cell.more_is_better:
        made.append(Loss(cell, _TO_REFERENCE, cell.reference, cell.ratio))
    against = [
        (ratio, mode)
        for mode in sorted(BASELINES if cell.mode in OURS else ())
        if (ratio := _ratio(results, cell, mode)) is not None
    ]
    if against:
        ratio, mode = min(against) if cell.more_is_better else max(against)
        made.append(Loss(cell, _TO_BASELINE, mode, ratio))
    return made


def _ratio(results: Results, cell: Cell, mode: str) -> float | None:
    """Compare with a mode; changes have no rounds, and several origins (API, files)."""
    if cell.suite == "change":
        other = results.first(suite="change", services=cell.services, mode=mode)
        return cell.median / other.median if other and other.median else None
    spread = results.compared(cell, mode)
    return spread.median if spread else None


def _about(cell: Cell) -> str:
    if cell.suite not in (*TRAFFIC, "agents"):
        return ", ".join(filter(None, (cell.kind, cell.where)))
    where = _PLACES.get(cell.where, cell.where)
    if cell.suite == "agents" and cell.where in ("remote", "local"):
        where = f"from outside, {where}"
    return f"{_OPERATIONS.get(cell.kind, cell.kind)}, {where}"


def _traffic(results: Results, cells: Sequence[Cell]) -> Iterator[Table]:
    reference = next((cell.reference for cell in cells if cell.reference), "")
    against = f", ratio to {reference}" if reference else ""
    yield _table(
        title(cells[0]),
        f"{cells[0].unit}{against}, ± half the distance of its quartiles",
        cells,
        lambda cell: clients_text(cell.clients),
        lambda cell: Figure(_rate(cell), _signs(results, cell)),
    )
    if any(cell.cpu or cell.latency for cell in cells):
        yield _table(
            f"{title(cells[0])}: cost and latency",
            f"CPU µs an operation{_without_agents(results, cells)}; "
            "latency in µs: 50 % and 99 % of operations took no longer",
            cells,
            lambda cell: clients_text(cell.clients),
            lambda cell: Figure(_cost(cell)),
        )


def _without_agents(results: Results, cells: Sequence[Cell]) -> str:
    """Return a remark if agents have work with such operations that was not measured."""
    kind, where = cells[0].kind, cells[0].where
    worked = kind in FLOWS and any(cell.mode in (*AGENTS, *KUBE_PROXIES) for cell in cells)
    measured = results.find(suite="agents", kind=kind, where=where)
    return " without agents'" if worked and not measured else ""


def _other(results: Results, cells: Sequence[Cell]) -> Table:
    suite, unit = cells[0].suite, cells[0].unit
    parts = f"{unit}: median, ± half the distance of the quartiles"
    if suite == "change":
        parts = f"{unit}: median, and what 99 of 100 take at most"
    elif suite == "agents":
        parts = f"{unit} on other cores, for checking connections"
    return _table(
        SUITES.get(suite, suite),
        parts,
        cells,
        _about if suite != "change" else lambda _: "",
        lambda cell: Figure(
            (measured(cell), digits(cell.tail(99)) if suite == "change" else span(cell.values)),
            _signs(results, cell),
        ),
    )


def _signs(results: Results, cell: Cell) -> str:
    return "".join(loss.sign for loss in losses(results, cell))


def _rate(cell: Cell) -> tuple[str, ...]:
    """Return rate and ratio; the reference shows its own variation."""
    if cell.ratio is None or cell.mode == cell.reference:
        return (measured(cell), "", span(cell.values))
    return (measured(cell), factor(cell.ratio), span(cell.ratios))


def _cost(cell: Cell) -> tuple[str, ...]:
    cpu = digits(Spread.of(cell.cpu).median) if cell.cpu else ""
    latencies = (cell.latency.get(key) for key in ("50", "99"))
    return (cpu, *("" if latency is None else digits(latency) for latency in latencies))


def _table(
    heading: str,
    parts: str,
    cells: Sequence[Cell],
    grouping: Callable[[Cell], str],
    figure: Callable[[Cell], Figure],
) -> Table:
    sizes = sorted({cell.services for cell in cells})
    figures: dict[tuple[str, str], dict[int, Figure]] = {}
    for cell in sorted(cells, key=lambda cell: cell.clients):
        # A change has several origins in one table.
        origin = f" ({cell.where})" if cell.suite == "change" and cell.where else ""
        key = (grouping(cell), f"{cell.mode}{origin}")
        figures.setdefault(key, {})[cell.services] = figure(cell)
    groups = list(dict.fromkeys(group for group, _ in figures))
    ordered = sorted(figures, key=lambda key: (groups.index(key[0]), rank(key[1])))
    rows = (Row(*key, tuple(figures[key].get(size) for size in sizes)) for key in ordered)
    return Table(heading, parts, tuple(map(services_text, sizes)), tuple(rows))
