"""What failed lately: connections to backends, and what was refused of Services. Pure.

The kernel's counts only grow. A failure of last week is no failure now, so the counts of one or two
minutes ago are kept here, and subtracted. The agent compares every few seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bpfsvc.model.answers import BackendFailures

SECONDS = 60.0
"""The shortest past that is compared with; the longest is twice as long."""

_SHARE = 0.05
"""From this share of failed connections on, the backend is at fault: a lost packet is no fault."""

_FEWEST = 3
"""So many have to fail, unless all do."""

Counts = tuple[int, ...]


class BackendCounts(NamedTuple):
    """Counts of a backend: connections that were opened, and those that failed, by reason."""

    connections: int = 0
    refused: int = 0
    unanswered: int = 0
    unreachable: int = 0


class CountWindow:
    """Counts by an id, compared with counts of one to two minutes ago."""

    def __init__(self, counts: Mapping[int, Counts], now: float) -> None:
        """``counts``: those so far, which are not recent. ``now``: seconds of a steady clock."""
        self._former, self._later = dict(counts), dict(counts)
        self._former_at = self._later_at = now

    def seconds(self, now: float) -> float:
        """Return the length of the time that is compared."""
        return now - self._former_at

    def turn(self, counts: Mapping[int, Counts], now: float) -> None:
        """Forget what is too long ago."""
        if now - self._later_at >= SECONDS:
            self._former, self._former_at = self._later, self._later_at
            self._later, self._later_at = dict(counts), now

    def since(self, key: int, counts: Counts, at_first: Counts) -> tuple[Counts, bool]:
        """Return what was counted lately, and whether the id was known before.

        ``at_first``: from where the counts of a new id are compared.
        """
        known = key in self._former
        before = self._former.get(key, at_first)
        if any(now < then for now, then in zip(counts, before, strict=True)):
            before = (0,) * len(counts)  # they began anew
        if not known or before != self._former[key]:
            self._former[key] = self._later[key] = before
        return tuple(now - then for now, then in zip(counts, before, strict=True)), known


class BackendWindow:
    """The failures of backends."""

    def __init__(self, counts: Mapping[int, BackendCounts], now: float) -> None:
        """``counts``: so far, by the index of counters."""
        self._window = CountWindow(counts, now)

    def seconds(self, now: float) -> float:
        """Return the length of the time that is compared."""
        return self._window.seconds(now)

    def update(self, counts: Mapping[int, BackendCounts], now: float) -> list[BackendFailures]:
        """Return the backends with recent failures.

        How many connections a backend had before its first failure is not known; so it is judged
        when it is seen again.
        """
        self._window.turn(counts, now)
        recent = []
        for key, counted in counts.items():
            at_first = BackendCounts(connections=counted.connections)
            since, known = self._window.since(key, counted, at_first)
            connections, *failed = since
            if any(failed):
                connections = max(connections, sum(failed))
                recent.append(
                    BackendFailures(
                        counters=key,
                        connections=connections,
                        refused=failed[0],
                        unanswered=failed[1],
                        unreachable=failed[2],
                        failing=known and is_failing(sum(failed), connections),
                    )
                )
        return recent


def is_failing(failed: int, connections: int) -> bool:
    """True if a backend is at fault: all connections failed, or several and not few of them."""
    return failed >= connections or (failed >= _FEWEST and failed >= _SHARE * connections)
