"""The times of following a resource, and how long to wait before the next attempt.

Thousands of nodes lose a restarted API server in the same instant and must not come back in the
same instant. So each waits for a random time between zero and a bound, and the bound doubles with
every failure. client-go has the same shortest and longest bound.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

SHORTEST, LONGEST = 0.8, 30.0
"""First and last bound, in seconds."""

_RESET_SECONDS = 60.0
"""Seconds without a failure after which the next one counts as the first."""


class Backoff:
    """Waiting times of one kind of attempt.

    ``clock`` is monotonic, in seconds; ``chance`` returns random numbers in [0, 1).
    """

    def __init__(
        self,
        shortest: float = SHORTEST,
        longest: float = LONGEST,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._shortest = shortest
        self._longest = longest
        self._clock = clock
        self._chance = chance
        self._bound = shortest
        self._reset_at = 0.0

    def next(self, at_least: float = 0.0) -> float:
        """Return the seconds to wait now, ``at_least`` what the server asked for."""
        now = self._clock()
        if now >= self._reset_at:
            self._bound = self._shortest
        seconds = at_least + self._chance() * self._bound
        self._bound = min(self._longest, 2 * self._bound)
        self._reset_at = now + seconds + _RESET_SECONDS
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """Times in seconds.

    * ``backoff``: waiting times after failures.
    * ``watch_seconds``: how long a watch is asked to last, drawn from this range, as client-go
      does, so that the watches of many nodes do not end together.
    * ``idle_seconds``: how long a watch may receive nothing. A server with bookmarks sends one a
      minute, so two were missed and half a minute went by. The watch is then resumed where it was,
      which costs little where a server sends no bookmarks at all.
    * ``list_idle_seconds``: the same while a list, or the first part of a WatchList, arrives.
    * ``probe_seconds``: until a resource that the server did not have is asked for again.
    """

    backoff: Callable[[], Backoff] = Backoff
    watch_seconds: tuple[float, float] = (300.0, 600.0)
    idle_seconds: float = 150.0
    list_idle_seconds: float = 30.0
    probe_seconds: float = 600.0
