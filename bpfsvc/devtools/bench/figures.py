"""Numbers with their spread, their names in words, and how much is measured.

A median alone hides whether a difference of one percent means anything; quartiles show it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Origin = Literal["json", "yaml", "API"]
"""Where an agent gets its objects from: files of a format, or an API server."""
PodLinks = Literal["routed", "bridge"]
"""How a node reaches its pods: by a route to the interface of each, or by a route to a bridge."""

SUITES = ("pods", "edge", "change", "start")
"""All suites, in the order in which they run."""
SHORT = SUITES[:3]
"""The suites of --quick."""
REMOVED = ("frames", "programs", "churn", "flood")
"""Suites of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured. Times in seconds.

    * ``services``: the sizes of cluster at which to measure (the edge at the outer two only).
    * ``modes``: of ``modes.MODES``; ``kinds`` of those in ``traffic``; none means all, of modes all
      but those ``without``.
    * ``clients``: how many at once.
    * ``rounds``: of alternating measurements; each gives one ratio. ``slices``: turns of each mode
      in a round, ``slice_seconds`` each. ``warm_seconds``: before the first round.
    * ``pods``: how nodes reach their pods where the load is real traffic.
    * ``pin``: whether the load and the nodes' work on its packets stay on one CPU.
    * ``policies``: whether the nodes have the rules of a policy engine.
    * ``changes``: of one EndpointSlice, followed by an agent; ``baseline_changes``: by kube-proxy.
      ``baseline_limit``: seconds in which a baseline must program a node, or it is given up.
    * ``starts``: of the agent, cold and warm each. ``origins``: of its objects.
    * ``limit``: no step begins that would end later than this after the start; 0 for no limit.
    """

    services: tuple[int, ...] = (1, 1000, 10_000)
    modes: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    clients: tuple[int, ...] = (1, 16)
    rounds: int = 11
    slices: int = 3
    slice_seconds: float = 0.06
    warm_seconds: float = 0.06
    pods: PodLinks = "routed"
    pin: bool = True
    policies: bool = False
    changes: int = 100
    baseline_changes: int = 10
    baseline_limit: float = 60.0
    starts: int = 3
    origins: tuple[Origin, ...] = ("API", "json", "yaml")
    limit: float = 0.0

    @property
    def outer_sizes(self) -> list[int]:
        """The smallest and the largest size of cluster."""
        return sorted({min(self.services), max(self.services)})


QUICK = Scale(
    services=(1, 1000),
    without=(
        *("iptables-nft", "ipvs", "stack-tc", "established", "xdp", "no-service-stack"),
        *("observed", "observed-tc"),
    ),
    kinds=("connect", "request", "datagrams"),
    clients=(1,),
    rounds=3,
    slices=2,
    slice_seconds=0.04,
    changes=20,
    baseline_changes=3,
    baseline_limit=10.0,
    starts=1,
    origins=("API",),
    limit=160.0,
)
"""What is done in less than three minutes."""


class Spread(NamedTuple):
    """Where the values of several rounds lie."""

    median: float
    low: float
    quarter: float
    three_quarters: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up at least one value."""
        quarters = (percentile(values, 25), percentile(values, 75))
        return cls(statistics.median(values), min(values), *quarters, max(values))

    @property
    def width(self) -> float:
        """The distance of the quartiles, as a part of the median."""
        return abs((self.three_quarters - self.quarter) / self.median) if self.median else 0.0


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which ``percent`` (1 to 99) of the values lie, interpolated."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def services_text(number: int) -> str:
    """Return a size of cluster in words; 0 is where the size does not matter."""
    if not number:
        return "any size"
    return "1 Service" if number == 1 else f"{number:,} Services"


def clients_text(number: int) -> str:
    """Return a number of clients in words."""
    return "1 client" if number == 1 else f"{number} clients"


def duration_text(seconds: float) -> str:
    """Return a duration in words: 45 s, 3 min 10 s, 1 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
