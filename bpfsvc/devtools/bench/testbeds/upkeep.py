"""The CPU time that agents or kube-proxy use for connections, apart from their packets.

An agent removes connections that are over every few seconds, and looks through its table now and
then. That is CPU time too, of another process on another core, used seconds after a connection was
closed. So CPU time is counted from before connections are made until the tables are empty again,
less the CPU time that the same processes use when nothing happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bpfsvc.datapath.bpf_map import Map

_IDLE_SECONDS = 5.2
"""How long an idle agent is watched: long enough for a look through the tables of the testbeds."""
_PATIENCE = 90.0
"""Seconds for tables to become empty: closed connections stay for 11, their masquerades for 61."""
_POLL = 0.25
_BUSY = 2.0
"""How many times its idle time a thread must use to be counted as working for connections.

Other threads follow files. Their loop costs as much as thousands of connections, and its cost
depends on other work of the machine; the difference would be noise.
"""

Clocks = Callable[[], Mapping[int, float]]
"""Returns the CPU seconds of each thread or process that may work for connections."""


class Upkeep:
    """The agents of one testbed. ``tables``: pins of maps that are empty when no flow is left."""

    def __init__(self, clocks: Clocks, tables: Iterable[Path]) -> None:
        self._clocks = clocks
        self._maps = [Map.pinned(table) for table in tables]
        self._idle: dict[int, float] = {}
        self._costs: dict[tuple[str, str], float] = {}
        self.start()

    def close(self) -> None:
        """Close the maps."""
        for table in self._maps:
            table.close()

    @property
    def knows_idle(self) -> bool:
        """True if the CPU time of idle agents is known."""
        return bool(self._idle)

    def is_clear(self) -> bool:
        """Return True if all tables are empty."""
        return not any(next(table.blocks(), None) for table in self._maps)

    def start(self) -> None:
        """Count from now on."""
        self._began, self._before = time.monotonic(), self._clocks()

    def learn_idle(self) -> None:
        """Take the CPU time since the start as the CPU time of idle agents."""
        passed, used = self._since()
        self._idle = {name: seconds / passed for name, seconds in used.items()}

    def take_cost(self, kind: str, where: str, operations: int) -> float:
        """Return, and keep, the CPU seconds per operation, of so many since the start."""
        passed, used = self._since()
        spent = 0.0
        for name, seconds in used.items():
            idle = self._idle.get(name, 0.0) * passed
            if seconds > _BUSY * idle:
                spent += seconds - idle
        self._costs[kind, where] = spent / operations
        return self._costs[kind, where]

    def of(self, kind: str, where: str) -> float:
        """Return the CPU seconds per operation; 0 where they were not taken."""
        return self._costs.get((kind, where), 0.0)

    def _since(self) -> tuple[float, dict[int, float]]:
        """Return the seconds since the start, and the CPU seconds used in them."""
        passed, clocks = time.monotonic() - self._began, self._clocks()
        return passed, {
            name: max(0.0, used - self._before.get(name, 0.0)) for name, used in clocks.items()
        }


def begin(all_upkeep: Sequence[Upkeep]) -> bool:
    """Start counting on several testbeds, once their tables are empty; False if they stay full.

    The first time, nothing may happen on them for a while.
    """
    if not clear(all_upkeep):
        return False
    if unknown := [upkeep for upkeep in all_upkeep if not upkeep.knows_idle]:
        for upkeep in unknown:
            upkeep.start()
        time.sleep(_IDLE_SECONDS)
        for upkeep in unknown:
            upkeep.learn_idle()
    for upkeep in all_upkeep:
        upkeep.start()
    return True


def clear(all_upkeep: Sequence[Upkeep]) -> bool:
    """Wait until all tables are empty; False if they stay full."""
    deadline = time.monotonic() + _PATIENCE
    while not all(upkeep.is_clear() for upkeep in all_upkeep):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True
