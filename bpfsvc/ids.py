"""The numbers by which the kernel's rows refer to each other.

Service ids and generations only ever grow: a row or a connection that still names an old one must
not find a stranger there. Ids of counters index an array in the kernel, so they stay dense and
are used again, the longest unused first, which leaves a reader of statistics the most time to
notice. An endpoint keeps its id, and so its counts, as long as it serves the same service port;
that pairing lives in the programmed rows themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from bpfsvc.errors import MapFull


class Ids:
    """Gives out ids. ``max_backends`` is the size of map backend_counters."""

    def __init__(self, max_backends: int) -> None:
        self.max_backends = max_backends
        self._last_service = 0
        self._last_generation = 0
        self._next_counter = 1
        self._free_counters: deque[int] = deque()

    def new_service(self) -> int:
        """Give a service id never used before; the first is 1."""
        self._last_service += 1
        return self._last_service

    def new_generation(self) -> int:
        """Give a generation never used before; the first is 1."""
        self._last_generation += 1
        return self._last_generation

    def take_counter(self) -> int:
        """Give an unused id for the counters of a backend; :class:`MapFull` if there is none.

        The first is 1: a row of 0 says that nothing is counted.
        """
        if self._free_counters:
            return self._free_counters.popleft()
        if self._next_counter > self.max_backends:
            raise MapFull(
                f"map backend_counters is full: it has room for {self.max_backends} backends",
                "raise --max-backends",
            )
        self._next_counter += 1
        return self._next_counter - 1

    def free_counters(self, counters: Iterable[int]) -> None:
        """Take ids back, once no row in the kernel names them."""
        self._free_counters.extend(one for one in counters if 0 < one <= self.max_backends)

    def adopt(self, last_service: int, last_generation: int, used: Iterable[int]) -> None:
        """Go on behind what a former agent gave out; ``used`` are the ids of counters in use."""
        self._last_service = last_service
        self._last_generation = last_generation
        is_used = bytearray(self.max_backends + 1)
        for one in used:
            is_used[one] = 1
        self._next_counter = is_used.rfind(1, 1) + 1 or 1
        self._free_counters = deque(one for one in range(1, self._next_counter) if not is_used[one])
