"""Source ports of questions: none comes again while somebody may still remember its last flow."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

PORTS = 60_000
"""Of ``ports.c``, some less."""
FORGOTTEN = 8.0
"""Seconds after which nobody remembers a UDP flow that may live for one.

Netfilter asks its clock whenever it looks for a flow; an agent of bpfsvc removes what is too old,
every five seconds, and takes a while for that.
"""


class Ports:
    """What a client has taken of them. ``clock`` and ``sleep`` are those of ``time``."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._taken: deque[tuple[float, int]] = deque()
        self._most = 0

    def take(self, number: int) -> None:
        """Note that so many have been taken until now."""
        self._taken.append((self._clock(), number))
        self._most = max(self._most, number)

    def wait(self) -> None:
        """Wait until as many as were ever taken at a time can be taken anew."""
        while self._taken:
            since, _ = self._taken[0]
            left = since + FORGOTTEN - self._clock()
            if left > 0:
                if sum(number for _, number in self._taken) + self._most <= PORTS:
                    return
                self._sleep(left)
            self._taken.popleft()
