"""Numbers with their spread, and the rows that suites report them in.

A median alone hides whether a difference of one percent means anything; the quartiles tell.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

Value = str | int | float
Row = dict[str, Value]
"""One line of a report: what was measured (text and counts), then the figures, by column."""

Say = Callable[[str], None]
"""Tells the person who waits what is going on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured. Times in seconds.

    * ``services``: the sizes of cluster at which everything is measured.
    * ``rounds``: of alternating measurements; each gives one ratio. ``slices``: turns in a round,
      ``slice_seconds`` each.
    * ``changes``: of one EndpointSlice. ``starts``: of the agent, cold and warm each.
    * ``churn_rate``: changes a second, for ``churn_seconds``, after ``idle_seconds`` without any.
    * ``flood_seconds``: length of each phase; ``flood_rates``: first packets a second.
    """

    services: tuple[int, ...] = (2, 10_000)
    rounds: int = 9
    slices: int = 10
    slice_seconds: float = 0.05
    changes: int = 100
    starts: int = 5
    flood_seconds: float = 5.0
    flood_rates: tuple[int, ...] = (10_000, 100_000)
    churn_rate: int = 1000
    churn_seconds: float = 60.0
    idle_seconds: float = 10.0


class Suite(Protocol):
    """A suite gives the rows of its table."""

    def __call__(self, scale: Scale, say: Say) -> list[Row]:
        """Measure."""


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

    def columns(self, name: str) -> Row:
        """Give the figures as columns, the median under the plain name."""
        return {
            name: self.median,
            f"{name} min": self.low,
            f"{name} 25%": self.quarter,
            f"{name} 75%": self.three_quarters,
            f"{name} max": self.high,
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Give the value below which ``percent`` of the values lie, between two if need be."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
