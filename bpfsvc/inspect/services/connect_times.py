"""How long backends took to answer the SYNs of this node's own clients, as counted by buckets.

The programs count in buckets, each of which ends at twice the time of the one before. So of a
quantile it is known between which two times it lies, and no more is said.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import NamedTuple

from bpfsvc.inspect.fields import lacks
from bpfsvc.inspect.reader import Reader

_MAP, _FIELDS = "connect_times", ("buckets", "sum_us")


class TimeRange(NamedTuple):
    """Between which times a time lies, in milliseconds; ``below`` is None for the last bucket."""

    least: float
    below: float | None

    @property
    def text(self) -> str:
        """``<0.256ms``; ``>1048.576ms`` for the last bucket."""
        return f">{self.least}ms" if self.below is None else f"<{self.below}ms"


class ConnectTimes(NamedTuple):
    """Connects by bucket, as counts or per second, with the sum of their times.

    ``shortest_us``: where the first bucket ends.
    """

    buckets: tuple[float, ...] = ()
    sum_us: float = 0
    shortest_us: int = 0

    @property
    def connects(self) -> float:
        """How many they are."""
        return sum(self.buckets)

    @property
    def mean_ms(self) -> float | None:
        """Their mean in milliseconds; None without connects."""
        return self.sum_us / self.connects / 1000 if self.connects else None

    def quantile(self, share: float) -> TimeRange | None:
        """Return within which time this share of all connects was answered; None without any."""
        wanted = share * self.connects
        if not wanted:
            return None
        counted = accumulate(self.buckets)
        number = next(number for number, count in enumerate(counted) if count >= wanted)
        return TimeRange(
            (self.shortest_us << (number - 1)) / 1000 if number else 0,
            None if number + 1 == len(self.buckets) else (self.shortest_us << number) / 1000,
        )


def added(times: Collection[ConnectTimes]) -> ConnectTimes:
    """Return several together."""
    if not times:
        return ConnectTimes()
    buckets = tuple(map(sum, zip(*(known.buckets for known in times), strict=True)))
    return ConnectTimes(
        buckets, sum(known.sum_us for known in times), max(known.shortest_us for known in times)
    )


def since(before: ConnectTimes | None, now: ConnectTimes) -> ConnectTimes:
    """Return what was counted between two moments; counts that became smaller began anew."""
    if before is None or any(b > n for b, n in zip(before.buckets, now.buckets, strict=True)):
        return now
    buckets = tuple(n - b for b, n in zip(before.buckets, now.buckets, strict=True))
    return now._replace(buckets=buckets, sum_us=now.sum_us - before.sum_us)


def read_connect_times(
    reader: Reader, wanted: Collection[int]
) -> Iterator[tuple[int, ConnectTimes]]:
    """Yield the times by the index of counters; earlier builds count none."""
    layout = reader.layout.maps.get(_MAP)
    if layout is None or lacks(layout.value, _FIELDS):
        return
    shortest_us = 1 << reader.layout.constant("CONNECT_SHORTEST_SHIFT")
    for key, raw in reader.entries(_MAP):
        index = int.from_bytes(key, sys.byteorder)
        if index in wanted:
            *buckets, sum_us = memoryview(raw).cast("Q")
            yield index, ConnectTimes(tuple(buckets), sum_us, shortest_us)
