"""What a client reports of a slice of time, and how slices are put together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

PERCENTILES = (50.0, 90.0, 99.0, 99.9)

Histogram = tuple[tuple[float, int], ...]
"""(upper edge in microseconds, operations that took less, but no less than the bucket below)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one client, in one slice or in several.

    ``operations``: those that were answered, in bulk whole blocks of 64 KiB; ``seconds``: from the
    start to the end of the last one; ``cpu_seconds``: of the client's process, the kernel's work
    for it included; ``bytes``: payload one way; ``errors``: refused, or without an answer.
    """

    operations: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    bytes: int = 0
    errors: int = 0
    histogram: Histogram = ()

    def __add__(self, other: Outcome) -> Outcome:
        """Give what both report together, one after the other."""
        counts = Counter(dict(self.histogram))
        counts.update(dict(other.histogram))
        return Outcome(
            operations=self.operations + other.operations,
            seconds=self.seconds + other.seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            bytes=self.bytes + other.bytes,
            errors=self.errors + other.errors,
            histogram=tuple(sorted(counts.items())),
        )

    def percentiles(self, wanted: Iterable[float] = PERCENTILES) -> dict[str, float]:
        """Give, by ``"50"`` or ``"99.9"``, the microseconds within which so many percent were done.

        Upper edges of buckets that are 3 % wide. Empty where no operation was timed.
        """
        found: dict[str, float] = {}
        total = sum(count for _, count in self.histogram)
        reached = 0
        left = sorted(wanted, reverse=True)
        for edge, count in self.histogram:
            reached += count
            # Rounded first: 99.9 % of 1000 is not to be 999.0000000000001.
            while left and reached >= math.ceil(round(total * left[-1] / 100, 6)):
                found[f"{left.pop():g}"] = edge
        return found
