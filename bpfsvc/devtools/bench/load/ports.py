"""Source ports of new flows: none is used again while its last flow may still be known."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

PORTS = 60_000
"""Source ports of UDP; somewhat fewer than ``ports.c`` has."""
FORGOTTEN = 8.0
"""Seconds after which a UDP flow that may live for one second is forgotten everywhere.

Netfilter checks its clock whenever it looks for a flow; an agent of bpfsvc removes old flows every
five seconds, and takes a while for that.
"""
REUSED = 2.2
"""Seconds after which a TCP port in TIME_WAIT is certainly used again (``tcp_tw_reuse``).

The kernel does so after one second; older kernels count in whole seconds.
"""

_NODE_PORTS = range(30_000, 32_768)
_MARGIN = 64  # ports that kept connections may hold


def tcp_ports(local_range: str) -> int:
    """Return how many ports there are for TCP; ``local_range``: ``ip_local_port_range``."""
    first, last = (int(word) for word in local_range.split())
    ports = range(first, last + 1)
    shared = range(max(first, _NODE_PORTS.start), min(last + 1, _NODE_PORTS.stop))
    return max(1, len(ports) - len(shared) - _MARGIN)


class SourcePorts:
    """The source ports that a client has taken.

    ``number`` ports are used in turn, a port again after ``seconds`` at the earliest. ``clock`` and
    ``sleep`` have the meaning of ``time.monotonic`` and ``time.sleep``.
    """

    def __init__(
        self,
        number: int = PORTS,
        seconds: float = FORGOTTEN,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._number, self._seconds = number, seconds
        self._clock, self._sleep = clock, sleep
        self._taken: deque[tuple[float, int]] = deque()
        self._most = 0

    def note_taken(self, number: int) -> None:
        """Note that so many have been taken until now."""
        self._taken.append((self._clock(), number))
        self._most = max(self._most, number)

    def wait(self) -> None:
        """Wait until as many as were ever taken at a time can be taken anew."""
        while self._taken:
            since, _ = self._taken[0]
            left = since + self._seconds - self._clock()
            if left > 0:
                if sum(number for _, number in self._taken) + self._most <= self._number:
                    return
                self._sleep(left)
            self._taken.popleft()
