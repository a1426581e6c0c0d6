"""When the connection GC reads the whole table.

Connections whose end was seen are removed without that. So while there is room, a sweep only has to
find what fell silent, and may be rare. If connections come fast, the sweeps must not be: they
notice that the table fills up, and collect early what is over.
"""

from __future__ import annotations

from typing import NamedTuple

_RARE_SECONDS = 30.0
"""From one sweep to the next at most."""

_OVERTIME = 0.5
"""No entry is kept for so much longer than it may, as a part of the shortest lifetime."""

_LIVELY = 1 / 64
"""More half-open pairs than this share of the table, or so many more closed ones in a tick than at
the last sweep, show that connections come fast."""


class Signs(NamedTuple):
    """What tells that connections come fast.

    * ``half_full``: the table was so at the last sweep.
    * ``half_open``: the number of half-open connections now.
    * ``closed``: how many have been removed in the last tick because their end was seen.
    """

    half_full: bool = False
    half_open: int = 0
    closed: int = 0


class SweepSchedule:
    """Decides when to sweep. Times are in seconds, of any clock.

    ``seconds``: from one sweep to the next at least. ``room``: entries of the table.
    """

    def __init__(self, seconds: float, room: int) -> None:
        self._seconds = seconds
        self._many = _LIVELY * room
        # The first sweep is soon: nothing is known of the table.
        self._rare_seconds = seconds
        self._began = 0.0
        self._closed = 0

    def begin(self, now: float, closed: int = 0) -> None:
        """Count the time from now on; ``closed`` as in :class:`Signs`."""
        self._began, self._closed = now, closed

    def expect(self, shortest: float) -> None:
        """Sweep as often as such entries need that were kept for ``shortest`` seconds only."""
        self._rare_seconds = max(self._seconds, min(_RARE_SECONDS, _OVERTIME * shortest))

    def is_due(self, now: float, signs: Signs) -> bool:
        """True if it is time to sweep."""
        passed = now - self._began
        if passed < self._seconds:
            return False
        return passed >= self._rare_seconds or self._is_fast(signs)

    def _is_fast(self, signs: Signs) -> bool:
        return (
            signs.half_full
            or signs.half_open > self._many
            or signs.closed - self._closed > self._many
        )
