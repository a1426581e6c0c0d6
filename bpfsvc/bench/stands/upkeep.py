"""What is done for connections beside the way of their packets: by agents, or by kube-proxy.

An agent looks through its table of connections every few seconds and removes those that are over.
That is CPU time too, of another process on another core, spent seconds after a connection was
closed. So it is taken from before connections are made until the tables are empty again, less what
the same processes take when nothing happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bpfsvc.datapath.bpf import Map

_IDLE_SECONDS = 5.2
"""For what is done when nothing happens: that includes one look through the tables."""
_PATIENCE = 60.0
"""Seconds, for tables to be emptied; closed connections stay for 10, and are looked for every 5."""
_POLL = 0.25
_BUSY = 2.0
"""How many times as much as before a thread has to take to be said to work for connections.

Others follow files, with a loop whose cost is that of thousands of connections and depends on what
else the machine does; the difference would be noise.
"""

Clocks = Callable[[], Mapping[int, float]]
"""Gives the CPU seconds of each of those who may work for connections, by some number."""


class Upkeep:
    """Of one stand. ``tables``: pins of the maps that are emptied when connections are over."""

    def __init__(self, clocks: Clocks, tables: Iterable[Path]) -> None:
        self._clocks = clocks
        self._maps = [Map.pinned(table) for table in tables]
        self._idle: dict[int, float] = {}
        self._each: dict[tuple[str, str], float] = {}
        self.start()

    def close(self) -> None:
        """Give the maps back."""
        for each in self._maps:
            each.close()

    @property
    def knows(self) -> bool:
        """Whether it knows what is used when nothing happens."""
        return bool(self._idle)

    def is_clear(self) -> bool:
        """Whether all tables are empty."""
        return not any(next(each.blocks(), None) for each in self._maps)

    def start(self) -> None:
        """Reckon from now on."""
        self._began, self._before = time.monotonic(), self._clocks()

    def learn(self) -> None:
        """Take what has been used since the start for what is used when nothing happens."""
        passed, used = self._since()
        self._idle = {name: seconds / passed for name, seconds in used.items()}

    def take(self, kind: str, where: str, operations: int) -> float:
        """Give, and keep, the CPU seconds of an operation, of so many since the start."""
        passed, used = self._since()
        spent = 0.0
        for name, seconds in used.items():
            idle = self._idle.get(name, 0.0) * passed
            if seconds > _BUSY * idle:
                spent += seconds - idle
        self._each[kind, where] = spent / operations
        return self._each[kind, where]

    def of(self, kind: str, where: str) -> float:
        """Give the CPU seconds of an operation; 0 where they were not taken."""
        return self._each.get((kind, where), 0.0)

    def _since(self) -> tuple[float, dict[int, float]]:
        """Give the seconds since the start, and the CPU seconds of each in them."""
        passed, clocks = time.monotonic() - self._began, self._clocks()
        return passed, {
            name: max(0.0, used - self._before.get(name, 0.0)) for name, used in clocks.items()
        }


def begin(kept: Sequence[Upkeep]) -> bool:
    """Have several begin at the same time, when their tables are empty; False if they stay full.

    The first time, nothing must happen on their stands for a while.
    """
    if not clear(kept):
        return False
    if strangers := [each for each in kept if not each.knows]:
        for each in strangers:
            each.start()
        time.sleep(_IDLE_SECONDS)
        for each in strangers:
            each.learn()
    for each in kept:
        each.start()
    return True


def clear(kept: Sequence[Upkeep]) -> bool:
    """Wait until all tables are empty; False if they stay full."""
    deadline = time.monotonic() + _PATIENCE
    while not all(each.is_clear() for each in kept):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True
