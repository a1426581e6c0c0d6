"""The numbers by which the kernel's entries refer to each other.

Service ids and generations only ever grow: an entry or a connection that still names an old one
must not find another Service under it. Ids of counters are indices of an array in the kernel, so
they stay dense and are used again, the longest unused first, but not soon: connections to an
endpoint that is gone still count under its id, an address may still keep to it (``lblc``), and a
reader of statistics needs time to notice. An endpoint keeps its id, and so its counts, as long as
it serves the same service port; that pairing is kept in the applied entries themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from bpfsvc.base.errors import MapFull

_RESTING = 4096
"""So many ids of counters are left unused before one is used again, if there is room."""


class Ids:
    """Source of new ids. ``max_backends`` is the highest index of map backend_counters."""

    def __init__(self, max_backends: int) -> None:
        self.max_backends = max_backends
        self._last_service = 0
        self._last_generation = 0
        self._next_counter = 1
        self._free_counters: deque[int] = deque()

    def new_service(self) -> int:
        """Return a service id never used before; the first is 1."""
        self._last_service += 1
        return self._last_service

    def new_generation(self) -> int:
        """Return a generation never used before; the first is 1."""
        self._last_generation += 1
        return self._last_generation

    def take_counter(self) -> int:
        """Return an unused id for the counters of a backend; :class:`MapFull` if all are used.

        The first is 1: 0 says that nothing is counted.
        """
        is_room = self._next_counter <= self.max_backends
        if len(self._free_counters) > (_RESTING if is_room else 0):
            return self._free_counters.popleft()
        if not is_room:
            raise MapFull(
                f"map backend_counters is full: it has room for {self.max_backends} backends",
                "raise --max-backends",
            )
        self._next_counter += 1
        return self._next_counter - 1

    def free_counters(self, counters: Iterable[int]) -> None:
        """Make ids available again, once no entry in the kernel names them."""
        self._free_counters.extend(
            counters_id for counters_id in counters if 0 < counters_id <= self.max_backends
        )

    def restore(self, last_service: int, last_generation: int, used: Iterable[int]) -> None:
        """Continue after the ids of an earlier agent; ``used`` are the ids of counters in use."""
        self._last_service = last_service
        self._last_generation = last_generation
        is_used = bytearray(self.max_backends + 1)
        for counters_id in used:
            is_used[counters_id] = 1
        self._next_counter = is_used.rfind(1, 1) + 1 or 1
        self._free_counters = deque(
            counters_id for counters_id in range(1, self._next_counter) if not is_used[counters_id]
        )
