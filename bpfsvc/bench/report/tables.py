"""The figures as tables, the same for terminal, page and documentation.

One table for each kind of traffic and place: a row for each mode, a column for each size of
cluster, a group of rows for each number of clients. What is not traffic has one table a suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.bench import words
from bpfsvc.bench.figures import Spread
from bpfsvc.bench.load import FLOWS
from bpfsvc.bench.report.losses import losses
from bpfsvc.bench.report.numbers import digits, factor, measured, signed, span
from bpfsvc.bench.results import FLOORS, OURS, Cell, Results, rank, tail

SUITES = {
    "pods": "To a backend on the other node",
    "edge": "From outside to a NodePort",
    "agents": "CPU time of agents for an operation, a part of that above",
    "frames": "CPU time of a packet from outside to a NodePort",
    "programs": "Cost of a program for a packet",
    "change": "From a change to changed packets",
    "start": "Start",
    "memory": "Memory",
    "churn": "While endpoints change all the time",
    "flood": "While first packets come in a flood",
}
"""What the suites are called, in the order of every report."""
TRAFFIC = ("pods", "edge")
"""The suites whose cells are rates of several clients, against a reference."""
_AGENTS = "agents"
_KUBE_PROXY = "kube-proxy"
_OPERATIONS = {
    "connect": "connect, request, close",
    "request": "requests on one connection",
    "bulk": "one direction at full rate",
    "datagrams": "UDP packets, echoed",
    "questions": "UDP question and answer, a socket each",
}


class Figure(NamedTuple):
    """One entry: its parts, and the signs of what it loses to."""

    parts: tuple[str, ...]
    signs: str = ""


class Line(NamedTuple):
    """One row: the group it belongs to, its name, and an entry for each column or None."""

    group: str
    name: str
    figures: tuple[Figure | None, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Figures under one title. ``parts`` says what the parts of an entry are."""

    title: str
    parts: str
    heads: tuple[str, ...]
    lines: tuple[Line, ...]


def tables(results: Results) -> list[Table]:
    """Give all tables that have figures."""
    found: list[Table] = []
    for suite in suites(results):
        cells = [cell for cell in results.find(suite=suite) if cell.values]
        if suite not in TRAFFIC:
            found += _others(results, cells)
            continue
        for kind, where in dict.fromkeys((cell.kind, cell.where) for cell in cells):
            alike = [cell for cell in cells if (cell.kind, cell.where) == (kind, where)]
            found += _traffic(results, alike)
    return found


def suites(results: Results) -> list[str]:
    """Give the suites that have cells, those with a title first."""
    order = list(SUITES)
    return sorted(
        {cell.suite for cell in results.cells if cell.values},
        key=lambda suite: (order.index(suite) if suite in order else len(order), suite),
    )


def about(cell: Cell) -> str:
    """Say what kind of traffic it is, and from or to where."""
    where = {
        ("edge", "remote"): "backend on another node",
        ("edge", "local"): "backend on the node asked",
        ("frames", "remote"): "backend on another node",
        ("frames", "local"): "backend on the node asked",
        ("pods", "pod"): "from a pod",
        ("pods", "node"): "from the node itself",
        ("agents", "pod"): "from a pod",
        ("agents", "node"): "from the node itself",
        ("agents", "remote"): "from outside, backend on another node",
        ("agents", "local"): "from outside, backend on the node asked",
    }.get((cell.suite, cell.where), cell.where)
    called = cell.suite in (*TRAFFIC, _AGENTS)
    kind = _OPERATIONS.get(cell.kind, cell.kind) if called else cell.kind
    return ", ".join(filter(None, (kind, where)))


def name(cell: Cell) -> str:
    """Give the name of a line: its mode, and who tells it of changes."""
    return f"{cell.mode} ({cell.where})" if cell.suite == "change" and cell.where else cell.mode


def heading(suite: str) -> str:
    """Give the title of a suite."""
    return SUITES.get(suite, suite)


def _traffic(results: Results, cells: Sequence[Cell]) -> Iterable[Table]:
    title = f"{heading(cells[0].suite)}: {about(cells[0])}"
    reference = next((cell.reference for cell in cells if cell.reference), "")
    against = f", ratio to {reference}" if reference else ""
    yield _table(
        title,
        f"{cells[0].unit}{against}, ± half the distance of its quartiles",
        cells,
        lambda cell: words.clients(cell.clients),
        lambda cell: Figure(_rate(cell), "".join(loss.sign for loss in losses(results, cell))),
    )
    if any(cell.cpu or cell.latency for cell in cells):
        yield _table(
            f"{title}: cost and latency",
            f"CPU µs an operation{_without_agents(results, cells)}; "
            "latency in µs: 50 % and 99 % of operations took no longer",
            cells,
            lambda cell: words.clients(cell.clients),
            lambda cell: Figure(_cost(cell)),
        )


def _without_agents(results: Results, cells: Sequence[Cell]) -> str:
    """Say that they are not counted, where they have something to do and nobody has looked."""
    kind, where = cells[0].kind, cells[0].where
    worked = kind in FLOWS and any(cell.mode in (*OURS, _KUBE_PROXY) for cell in cells)
    if not worked or results.find(suite=_AGENTS, kind=kind, where=where):
        return ""
    return " without agents'"


def _others(results: Results, cells: Sequence[Cell]) -> Iterable[Table]:
    for unit in dict.fromkeys(cell.unit for cell in cells):
        alike = [cell for cell in cells if cell.unit == unit]
        suite = alike[0].suite
        parts = f"{unit}: median, ± half the distance of the quartiles"
        if suite == "change":
            parts = f"{unit}: median, and what 99 of 100 take at most"
        elif suite == _AGENTS:
            parts = f"{unit} on other cores, for looking after what is known of connections"
        elif suite in FLOORS:
            parts = f"{unit}: median, what it is above {FLOORS[suite]}, ± as in other tables"
        yield _table(
            heading(suite),
            parts,
            alike,
            about if suite != "change" else lambda _: "",
            lambda cell: Figure(
                _cost_of(results, cell), "".join(loss.sign for loss in losses(results, cell))
            ),
        )


def _cost_of(results: Results, cell: Cell) -> tuple[str, ...]:
    if cell.suite == "change":
        return (measured(cell), digits(tail(cell, 99)))
    if cell.suite not in FLOORS:
        return (measured(cell), span(cell.values))
    floor = results.beside(cell, FLOORS[cell.suite])
    if floor is None or floor is cell:
        return (measured(cell), "", span(cell.values))
    above = [mine - least for mine, least in zip(cell.values, floor.values, strict=False)]
    return (measured(cell), signed(Spread.of(above).median), span(cell.values))


def _table(
    title: str,
    parts: str,
    cells: Sequence[Cell],
    grouping: Callable[[Cell], str],
    figure: Callable[[Cell], Figure],
) -> Table:
    sizes = sorted({cell.services for cell in cells})
    places: dict[tuple[str, str], dict[int, Figure]] = {}
    for cell in sorted(cells, key=lambda cell: cell.clients):
        places.setdefault((grouping(cell), name(cell)), {})[cell.services] = figure(cell)
    groups = list(dict.fromkeys(group for group, _ in places))
    ordered = sorted(places, key=lambda place: (groups.index(place[0]), rank(place[1])))
    return Table(
        title,
        parts,
        tuple(map(words.services, sizes)),
        tuple(
            Line(group, name, tuple(places[group, name].get(size) for size in sizes))
            for group, name in ordered
        ),
    )


def _rate(cell: Cell) -> tuple[str, ...]:
    """Give rate and ratio; the reference shows how far it moves itself."""
    if cell.ratio is None or cell.mode == cell.reference:
        return (measured(cell), "", span(cell.values))
    return (measured(cell), factor(cell.ratio), span(cell.ratios))


def _cost(cell: Cell) -> tuple[str, ...]:
    cpu = digits(Spread.of(cell.cpu).median) if cell.cpu else ""
    return (
        cpu,
        *(digits(cell.latency[key]) if key in cell.latency else "" for key in ("50", "99")),
    )
