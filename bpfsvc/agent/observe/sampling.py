"""How many events the programs are asked for: all of them, or one of so many.

A node may make more connections than one thread can tell of, and a flood of SYNs must not take the
agent's time. So each of two classes of events has a limit of its own: connections, and failures.
"""

from __future__ import annotations

_MOST_BITS = 20


class Sample:
    """The sample of one class of events: one of ``2 ** bits``."""

    def __init__(self) -> None:
        self._bits = 0

    @property
    def mask(self) -> int:
        """What the programs compare with a random number: none of its bits may be set."""
        return (1 << self._bits) - 1

    def adapt(self, per_second: float, limit: float) -> bool:
        """Fit the sample to the events that came; return True if it has changed.

        ``limit``: events per second.
        """
        before = self._bits
        while per_second > limit and self._bits < _MOST_BITS:
            self._bits += 1
            per_second /= 2
        if self._bits == before and self._bits and per_second < limit / 4:
            self._bits -= 1
        return self._bits != before
