"""The figures as tables, the same for terminal, page and documentation.

One table for each kind of traffic and place: a row for each mode, a column for each size of
cluster, a group of rows for each number of clients. What is not traffic has one table a suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.devtools.bench.figures import Spread, clients_text, services_text
from bpfsvc.devtools.bench.load.tool import FLOWS
from bpfsvc.devtools.bench.modes import AGENTS, KUBE_PROXIES
from bpfsvc.devtools.bench.report.losses import losses
from bpfsvc.devtools.bench.report.text import digits, factor, measured, signed, span
from bpfsvc.devtools.bench.results import FLOORS, Cell, Results, rank

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
"""The titles of the suites, in the order of every report."""
TRAFFIC = ("pods", "edge")
"""The suites whose cells are rates of several clients, against a reference."""
_AGENTS = "agents"
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
    """Figures under one title. ``parts``: what the parts of an entry are; ``first``: of lines."""

    title: str
    parts: str
    heads: tuple[str, ...]
    lines: tuple[Line, ...]
    first: str = "mode"


def tables(results: Results) -> list[Table]:
    """Return all tables that have figures, suites without a title last."""
    found: list[Table] = []
    measured_suites = {cell.suite for cell in results.cells if cell.values}
    unknown = sorted(measured_suites - SUITES.keys())
    for suite in (*(one for one in SUITES if one in measured_suites), *unknown):
        cells = [cell for cell in results.find(suite=suite) if cell.values]
        if suite not in TRAFFIC:
            found += _others(results, cells)
            continue
        for kind, where in dict.fromkeys((cell.kind, cell.where) for cell in cells):
            alike = [cell for cell in cells if (cell.kind, cell.where) == (kind, where)]
            found += _traffic(results, alike)
    return found


def about(cell: Cell) -> str:
    """Return the kind of traffic, and from or to where."""
    traffic = cell.suite in (*TRAFFIC, _AGENTS)
    kind = _OPERATIONS.get(cell.kind, cell.kind) if traffic else cell.kind
    named = traffic or cell.suite == "frames"
    where = _PLACES.get(cell.where, cell.where) if named else cell.where
    if cell.suite == _AGENTS and cell.where in ("remote", "local"):
        where = f"from outside, {where}"
    return ", ".join(filter(None, (kind, where)))


def name(cell: Cell) -> str:
    """Return the name of a line: its mode, and by what it hears of changes."""
    return f"{cell.mode} ({cell.where})" if cell.suite == "change" and cell.where else cell.mode


def heading(suite: str) -> str:
    """Return the title of a suite."""
    return SUITES.get(suite, suite)


def _traffic(results: Results, cells: Sequence[Cell]) -> Iterable[Table]:
    title = f"{heading(cells[0].suite)}: {about(cells[0])}"
    reference = next((cell.reference for cell in cells if cell.reference), "")
    against = f", ratio to {reference}" if reference else ""
    yield _table(
        title,
        f"{cells[0].unit}{against}, ± half the distance of its quartiles",
        cells,
        lambda cell: clients_text(cell.clients),
        lambda cell: Figure(_rate(cell), _signs(results, cell)),
    )
    if any(cell.cpu or cell.latency for cell in cells):
        yield _table(
            f"{title}: cost and latency",
            f"CPU µs an operation{_without_agents(results, cells)}; "
            "latency in µs: 50 % and 99 % of operations took no longer",
            cells,
            lambda cell: clients_text(cell.clients),
            lambda cell: Figure(_cost(cell)),
        )


def _without_agents(results: Results, cells: Sequence[Cell]) -> str:
    """Return a remark if agents have work with such operations and it was not measured."""
    kind, where = cells[0].kind, cells[0].where
    worked = kind in FLOWS and any(cell.mode in (*AGENTS, *KUBE_PROXIES) for cell in cells)
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
            parts = f"{unit} on other cores, for checking connections"
        elif suite in FLOORS:
            parts = f"{unit}: median, what it is above {FLOORS[suite]}, ± as in other tables"
        yield _table(
            heading(suite),
            parts,
            alike,
            about if suite != "change" else lambda _: "",
            lambda cell: Figure(_cost_of(results, cell), _signs(results, cell)),
        )


def _signs(results: Results, cell: Cell) -> str:
    return "".join(loss.sign for loss in losses(results, cell))


def _cost_of(results: Results, cell: Cell) -> tuple[str, ...]:
    if cell.suite == "change":
        return (measured(cell), digits(cell.tail(99)))
    if cell.suite not in FLOORS:
        return (measured(cell), span(cell.values))
    floor = results.beside(cell, FLOORS[cell.suite])
    if floor is None or floor is cell:
        return (measured(cell), "", span(cell.values))
    above = [ours - least for ours, least in zip(cell.values, floor.values, strict=False)]
    return (measured(cell), signed(Spread.of(above).median), span(cell.values))


def _rate(cell: Cell) -> tuple[str, ...]:
    """Return rate and ratio; the reference shows its own variation."""
    if cell.ratio is None or cell.mode == cell.reference:
        return (measured(cell), "", span(cell.values))
    return (measured(cell), factor(cell.ratio), span(cell.ratios))


def _cost(cell: Cell) -> tuple[str, ...]:
    cpu = digits(Spread.of(cell.cpu).median) if cell.cpu else ""
    latency = (cell.latency.get(key) for key in ("50", "99"))
    return (cpu, *("" if each is None else digits(each) for each in latency))


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
    lines = tuple(
        Line(*place, tuple(places[place].get(size) for size in sizes)) for place in ordered
    )
    return Table(title, parts, tuple(map(services_text, sizes)), lines)
