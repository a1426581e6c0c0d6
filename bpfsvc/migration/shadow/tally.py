"""How many connections were compared, and how many differed, by Service and kind."""

from __future__ import annotations

import threading
from typing import NamedTuple

from bpfsvc.migration.shadow.comparison import Comparison


class Count(NamedTuple):
    """Differences of one kind of one Service. ``first`` is the text of the first one."""

    namespace: str
    name: str
    kind: str
    number: int
    first: str


class Totals(NamedTuple):
    """All counts of one moment, sorted. ``losses``: how often connections were missed."""

    flows: int
    counts: tuple[Count, ...]
    losses: int

    @property
    def differences(self) -> int:
        """The number of connections that differed."""
        return sum(count.number for count in self.counts)


class Tally:
    """Counts comparisons; may be read by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flows = 0
        self._losses = 0
        self._counts: dict[tuple[str, str, str], Count] = {}

    def add(self, comparison: Comparison) -> bool:
        """Count a connection; return True for the first difference of a kind of a Service."""
        key = (*comparison.service, comparison.kind)
        with self._lock:
            self._flows += 1
            if not comparison.kind:
                return False
            known = self._counts.get(key)
            first = known or Count(*key, 0, comparison.text)
            self._counts[key] = first._replace(number=first.number + 1)
            return known is None

    def set_losses(self, losses: int) -> None:
        """Set how often connections were missed."""
        with self._lock:
            self._losses = losses

    def totals(self) -> Totals:
        """Return what has been counted so far."""
        with self._lock:
            return Totals(self._flows, tuple(sorted(self._counts.values())), self._losses)
