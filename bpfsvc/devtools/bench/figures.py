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
"""How a node reaches its pods: by a route to the interface of each, or by one to their bridge."""

SUITES = ("pods", "edge", "frames", "programs", "change", "start", "churn", "flood")
"""All, in the order in which they run."""
USUAL = SUITES[:6]
SHORT = SUITES[:5]
"""What is measured without --suites, and with --quick."""


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
    * ``changes``: of one EndpointSlice, followed by an agent; ``baseline_changes``: by baselines.
      ``baseline_limit``: seconds in which one must program a node, or is given up.
    * ``starts``: of the agent, cold and warm each. ``origins``: of its objects.
    * ``churn_rate``: changes a second, for ``churn_seconds``, after ``idle_seconds`` without any.
    * ``flood_seconds``: length of each phase; ``flood_rates``: first packets a second.
    * ``limit``: no part begins that would end later than this after the start; 0 for no limit.
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
    changes: int = 100
    baseline_changes: int = 10
    baseline_limit: float = 60.0
    starts: int = 3
    origins: tuple[Origin, ...] = ("API", "json", "yaml")
    flood_seconds: float = 5.0
    flood_rates: tuple[int, ...] = (10_000, 100_000)
    churn_rate: int = 1000
    churn_seconds: float = 60.0
    idle_seconds: float = 10.0
    limit: float = 0.0

    @property
    def outer_sizes(self) -> list[int]:
        """The smallest and the largest size of cluster."""
        return sorted({min(self.services), max(self.services)})


QUICK = Scale(
    services=(1, 1000),
    without=("iptables-nft", "ipvs", "stack-tc", "established", "xdp", "no-service-stack"),
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
    flood_rates=(10_000,),
    churn_seconds=10.0,
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
        ordered = sorted(values)
        return cls(
            statistics.median(ordered),
            ordered[0],
            percentile(ordered, 25),
            percentile(ordered, 75),
            ordered[-1],
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which ``percent`` of the values lie, interpolated if necessary."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def services_text(number: int) -> str:
    """Return a size of cluster in words; 0 is where it does not matter."""
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
