"""The aims of bpfsvc, each reported as reached or missed.

Two modes are compared by the median of the ratios of their rounds, because rates of two moments
cannot be compared on a machine that does other things too. If several numbers of clients were
measured, the smallest counts: one client waits for every packet, many clients hide the cost of a
packet.

Aims are for the developers of bpfsvc. Judge them by a whole run of 11 rounds or more on a quiet
machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bpfsvc.devtools.bench.figures import services_text
from bpfsvc.devtools.bench.modes import (
    DEFAULT,
    DIRECT,
    NO_SERVICE,
    NO_SERVICE_STACK,
    OBSERVED,
    OBSERVED_TC,
    STACK,
    STACK_TC,
    TC,
)
from bpfsvc.devtools.bench.results import Results

_LARGE = 10_000
_SIZES = (1, _LARGE)
_NFTABLES, _IPTABLES = "kube-proxy-nftables", "kube-proxy-iptables"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """One aim, and whether it is reached.

    * ``goal``: at least this, or ``at_most``. ``unit`` is empty for ratios.
    * ``measured``: None if nothing was measured; ``quartiles`` around it, of rounds.
    * ``remark``: why nothing was measured.
    """

    text: str
    goal: float
    at_most: bool = False
    unit: str = ""
    measured: float | None = None
    quartiles: tuple[float, ...] = ()
    remark: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the aim is reached; None if nothing was measured."""
        if self.measured is None:
            return None
        return self.measured <= self.goal if self.at_most else self.measured >= self.goal


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison of two modes: the goals are for 1 Service and for 10,000.

    ``policies``: on nodes with the rules of a policy engine.
    """

    text: str
    goals: tuple[float, float]
    mode: str = DEFAULT
    other: str = DIRECT
    kind: str = "connect"
    where: str = "pod"
    cpu: bool = False
    policies: bool = False

    def judged(self, results: Results, services: int, goal: float) -> Aim:
        """Return the aim at a size of cluster."""
        suite = "pods" if self.where == "pod" else "edge"
        aim = Aim(text=f"{self.text}, {services_text(services)}", goal=goal, at_most=self.cpu)
        wanted = {"kind": self.kind, "where": self.where, "mode": self.mode}
        cell = results.fewest_clients(suite=suite, services=services, **wanted)
        if cell is None:
            missing = _missing(results, suite, services)
            return replace(aim, remark=missing or f"no figures of {self.mode}")
        if bool(results.scale.get("policies")) is not self.policies:
            given = "with" if self.policies else "without"
            return replace(aim, remark=f"judged {given} --policies")
        spread = results.compared(cell, self.other, cpu=self.cpu)
        if spread is None:
            return replace(aim, remark=f"no figures of {self.other}")
        quartiles = (spread.quarter, spread.three_quarters)
        return replace(aim, measured=spread.median, quartiles=quartiles)


_REQUEST = "connect+request+close"
_POLICED = "default on nodes with policies (--policies), against real kube-proxy nftables"
_STACK_PATH = "stack path (--fast-path off)"
_NOT_SERVED = "traffic to no Service, agent attached, against nothing attached, connections"
_OBSERVED = "all events shown (bpfsvc observe), against no reader"
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
    _Comparison(f"{_POLICED}, connections", (1.0, 1.0), other=_NFTABLES, policies=True),
    _Comparison(
        f"{_POLICED}, requests", (1.2, 1.2), other=_NFTABLES, kind="request", policies=True
    ),
    _Comparison(
        f"{_STACK_PATH}, default, against real kube-proxy nftables, connections",
        (1.0, 1.0),
        STACK,
        _NFTABLES,
    ),
    _Comparison(
        f"{_STACK_PATH}, tc, against real kube-proxy nftables, connections",
        (0.97, 0.97),
        STACK_TC,
        _NFTABLES,
    ),
    _Comparison(f"{_NOT_SERVED}: auto", (1.2, 1.2), NO_SERVICE),
    _Comparison(f"{_NOT_SERVED}: off", (0.98, 0.98), NO_SERVICE_STACK),
    _Comparison(f"{_OBSERVED}, default, connections", (0.98, 0.98), OBSERVED, DEFAULT),
    _Comparison(f"{_OBSERVED}, tc, connections", (0.98, 0.98), OBSERVED_TC, TC),
    _Comparison("bulk, one direction, GSO, against direct", (1.0, 1.0), kind="bulk"),
    _Comparison("CPU per connection against direct", (0.8, 0.8), cpu=True),
)


def aims(results: Results) -> list[Aim]:
    """Return all aims, in the order of every report."""
    compared = [
        comparison.judged(results, services, goal)
        for comparison in _COMPARISONS
        for services, goal in zip(_SIZES, comparison.goals, strict=True)
    ]
    return [*compared, *_changes(results)]


def _changes(results: Results) -> Iterator[Aim]:
    text = f"change at the API to changed packets p99, {services_text(_LARGE)}"
    aim = Aim(text=text, goal=10.0, at_most=True, unit="ms")
    cell = results.first(suite="change", services=_LARGE, where="API", mode=DEFAULT)
    if cell:
        yield replace(aim, measured=cell.tail(99))
    else:
        remark = _missing(results, "change", _LARGE) or "no figures of bpfsvc"
        yield replace(aim, remark=remark)


def _missing(results: Results, suite: str, services: int) -> str:
    """Return why a suite has no figures at a size; an empty text if it has some."""
    if not results.first(suite=suite):
        return {
            True: f"the suite {suite} has no figures, see the notes",
            False: f"the suite {suite} was not run",
            None: f"no figures of the suite {suite}",
        }[results.wanted("suites", suite)]
    if results.first(suite=suite, services=services):
        return ""
    if results.wanted("services", services):
        return f"no figures of {services_text(services)}, see the notes"
    return f"no cluster of {services_text(services)} in this run"
