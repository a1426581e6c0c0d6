"""Does a figure grow? A line through its samples, and how sure its slope is."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

_BOTH_SIDES = 0.975
"""The quantile of a confidence interval of 95 %."""

_FEWEST = 8
"""Samples that say anything about a slope."""

_MOST_ALIKE = 0.95
"""A larger correlation of neighbours is not believed: its estimate is poor."""


class TooFew(ValueError):
    """There are too few samples for a slope."""


class Slope(NamedTuple):
    """Growth in an hour, and the interval in which it is with a probability of 95 %."""

    hourly: float
    low: float
    high: float


class Limit(NamedTuple):
    """The growth that a figure may have: so much in an hour, and so much in any time.

    ``once`` is for what fills up and then stays, such as caches of Python. In a short run it would
    look like growth for ever.
    """

    hourly: float
    once: float

    def allows(self, slope: Slope, hours: float) -> bool:
        """True if the slope over so many hours may be within the limit."""
        return slope.low <= self.hourly + self.once / hours


def slope(hours: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of values at times, in hours; :class:`TooFew` for too few samples.

    Neighbours among samples of one life are alike, so the samples say less than their number: the
    interval is that of as many independent ones as they are worth.
    """
    if len(hours) < _FEWEST:
        raise TooFew(f"{len(hours)} samples are too few for a slope")
    hourly, start = statistics.linear_regression(hours, values)
    rests = [value - start - hourly * hour for hour, value in zip(hours, values, strict=True)]
    squares = math.fsum(rest * rest for rest in rests)
    if squares == 0:
        return Slope(hourly, hourly, hourly)
    alike = math.fsum(a * b for a, b in itertools.pairwise(rests)) / squares
    alike = min(max(alike, 0.0), _MOST_ALIKE)
    mean = statistics.fmean(hours)
    spread = math.fsum((hour - mean) ** 2 for hour in hours)
    freedom = len(hours) - 2
    error = math.sqrt(squares / freedom / spread * (1 + alike) / (1 - alike))
    margin = _student(freedom) * error
    return Slope(hourly, hourly - margin, hourly + margin)


def _student(freedom: int) -> float:
    """Return the quantile of Student's distribution, by its expansion around the normal one."""
    z = statistics.NormalDist().inv_cdf(_BOTH_SIDES)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second
