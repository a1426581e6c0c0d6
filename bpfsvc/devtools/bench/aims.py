"""What bpfsvc aims at, and whether it gets there: every aim is reported, reached or not.

Two modes are compared by the median of the ratios of their rounds, as one cannot compare rates of
two moments on a machine that does other things too. If several numbers of clients were measured,
the smallest counts: one client waits for every packet, many hide what a packet costs.

Aims are for those who work on bpfsvc. They are to be judged by a whole run of 11 rounds or more on
a quiet machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bpfsvc.devtools.bench.figures import Spread, services_text
from bpfsvc.devtools.bench.modes import (
    DEFAULT,
    DIRECT,
    ESTABLISHED,
    NO_SERVICE,
    NO_SERVICE_STACK,
    OURS,
    STACK,
    STACK_TC,
    TC,
)
from bpfsvc.devtools.bench.results import FLOORS, Cell, Results, ratios

_LARGE = 10_000
_SIZES = (1, _LARGE)
_NFTABLES, _IPTABLES = "kube-proxy-nftables", "kube-proxy-iptables"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One aim, and whether it is reached.

    * ``goal``: at least this, or ``at_most``. ``unit`` is empty for ratios.
    * ``measured``: None if it was not; ``quartiles`` around it, of rounds.
    * ``remark``: what more there is to say, or why nothing was measured.
    * ``cells``: what it was computed from.
    """

    text: str
    goal: float
    at_most: bool = False
    unit: str = ""
    measured: float | None = None
    quartiles: tuple[float, float] | None = None
    remark: str = ""
    cells: tuple[Cell, ...] = ()

    @property
    def reached(self) -> bool | None:
        """Whether it is; None if nothing was measured."""
        if self.measured is None:
            return None
        return self.measured <= self.goal if self.at_most else self.measured >= self.goal


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Where a mode is compared with another one: its goal with one Service, and with 10,000."""

    text: str
    goals: tuple[float, float]
    mode: str = DEFAULT
    other: str = DIRECT
    kind: str = "connect"
    where: str = "pod"
    cpu: bool = False

    @property
    def suite(self) -> str:
        """Return where it is measured."""
        return "pods" if self.where == "pod" else "edge"

    def judged(self, results: Results, services: int, goal: float) -> Aim:
        """Return the aim at a size of cluster."""
        text = f"{self.text}, {services_text(services)}"
        aim = Aim(text=text, goal=goal, at_most=self.cpu)
        alike = {name: getattr(self, name) for name in ("suite", "kind", "where", "mode")}
        cells = [cell for cell in results.find(**alike, services=services) if cell.values]
        if not cells:
            missing = _no_cluster(results, self.suite, services)
            return replace(aim, remark=missing or f"no figures of {self.mode}")
        cell = min(cells, key=lambda cell: cell.clients)
        other = results.beside(cell, self.other)
        found = self._ratios(cell, other) if other else ()
        if other is None or not found:
            return replace(aim, remark=f"no figures of {self.other}")
        return _measured(aim, found, (cell, other))

    def _ratios(self, cell: Cell, other: Cell) -> tuple[float, ...]:
        if not self.cpu:
            return ratios(cell, other)
        return tuple(ours / theirs for ours, theirs in zip(cell.cpu, other.cpu, strict=False))


_REQUEST = "connect+request+close"
_COMPARISONS = (
    _Comparison(
        f"default (sockets), no policies on the nodes: {_REQUEST} against direct", (1.28, 1.28)
    ),
    _Comparison(f"the same by tc (--socket-lb off): {_REQUEST} against direct", (1.2, 1.2), TC),
    _Comparison(
        f"default: {_REQUEST} against real kube-proxy nftables", (1.35, 1.35), other=_NFTABLES
    ),
    _Comparison(
        f"default: {_REQUEST} against real kube-proxy iptables", (1.5, 10), other=_IPTABLES
    ),
    _Comparison("request/response against direct", (1.15, 1.15), kind="request"),
    _Comparison(
        "UDP question and answer, a socket each, against direct", (1.1, 1.1), kind="questions"
    ),
    _Comparison(
        "NodePort from outside, backend elsewhere, connections against direct to the pod",
        (0.9, 0.9),
        where="remote",
    ),
    _Comparison(
        "NodePort from outside, backend here, connections against direct to the pod",
        (1.1, 1.1),
        where="local",
    ),
    _Comparison(
        "--fast-path established against real kube-proxy nftables, connections",
        (1.05, 1.05),
        ESTABLISHED,
        _NFTABLES,
    ),
    _Comparison(
        "--fast-path established against real kube-proxy nftables, requests",
        (1.2, 1.2),
        ESTABLISHED,
        _NFTABLES,
        kind="request",
    ),
    _Comparison(
        "stack path (--fast-path off), default, against real kube-proxy nftables, connections",
        (1.0, 1.0),
        STACK,
        _NFTABLES,
    ),
    _Comparison(
        "stack path (--fast-path off), tc, against real kube-proxy nftables, connections",
        (0.97, 0.97),
        STACK_TC,
        _NFTABLES,
    ),
    _Comparison(
        "traffic to no Service, agent attached, against nothing attached, connections: auto",
        (1.2, 1.2),
        NO_SERVICE,
    ),
    _Comparison(
        "traffic to no Service, agent attached, against nothing attached, connections: off",
        (0.98, 0.98),
        NO_SERVICE_STACK,
    ),
    _Comparison("bulk, one direction, GSO, against direct", (1.0, 1.0), kind="bulk"),
    _Comparison("CPU per connection against direct", (0.8, 0.8), cpu=True),
)


def aims(results: Results) -> list[Aim]:
    """Return all of them, in the order of every report."""
    compared = [
        each.judged(results, services, goal)
        for each in _COMPARISONS
        for services, goal in zip(_SIZES, each.goals, strict=True)
    ]
    return [*compared, *_changes(results), _established(results)]


def _established(results: Results) -> Aim:
    """Judge the dearest of the programs that established packets pass."""
    aim = Aim(
        text="established packet, cost of the program above an empty one, the dearest of all",
        goal=100.0,
        at_most=True,
        unit="ns",
    )
    cells = [
        cell
        for cell in results.find(suite="programs", mode=DEFAULT)
        if cell.kind.startswith("established") and cell.values
    ]
    if not cells:
        return replace(aim, remark=_no_suite(results, "programs") or "no figures of such a packet")
    found = []
    for cell in cells:
        if empty := results.beside(cell, FLOORS["programs"]):
            above = [a - b for a, b in zip(cell.values, empty.values, strict=False)]
            kind = cell.kind.removeprefix("established, ")
            found.append(_measured(aim, above, (cell, empty), kind))
    if not found:
        return replace(aim, remark="no figures of an empty program")
    return max(found, key=lambda one: one.measured or 0.0)


def _changes(results: Results) -> Iterator[Aim]:
    aim = Aim(
        text=f"change at the API to changed packets p99, {services_text(_LARGE)}",
        goal=10.0,
        at_most=True,
        unit="ms",
    )
    found = results.find(suite="change", services=_LARGE, where="API")
    cells = [cell for cell in found if cell.mode in OURS and cell.values]
    if not cells:
        missing = _no_cluster(results, "change", _LARGE)
        yield replace(aim, remark=missing or "no figures of bpfsvc")
    for cell in cells:
        yield replace(aim, measured=cell.tail(99), cells=(cell,))


def _no_cluster(results: Results, suite: str, services: int) -> str:
    """Return why a suite has no figures at a size; an empty text if it has some."""
    if reason := _no_suite(results, suite):
        return reason
    if any(cell.values for cell in results.find(suite=suite, services=services)):
        return ""
    if results.wanted("services", services):
        return f"no figures of {services_text(services)}, see the notes"
    return f"no cluster of {services_text(services)} in this run"


def _no_suite(results: Results, suite: str) -> str:
    """Return why a suite has no figures; an empty text if it has some."""
    if any(cell.values for cell in results.find(suite=suite)):
        return ""
    return {
        True: f"the suite {suite} has no figures, see the notes",
        False: f"the suite {suite} was not run",
        None: f"no figures of the suite {suite}",
    }[results.wanted("suites", suite)]


def _measured(aim: Aim, values: Sequence[float], cells: tuple[Cell, ...], remark: str = "") -> Aim:
    spread = Spread.of(values)
    quartiles = (spread.quarter, spread.three_quarters)
    return replace(aim, measured=spread.median, quartiles=quartiles, remark=remark, cells=cells)
