"""The kernel's maps as metrics read them; the agent opens them, each for metrics alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bpfsvc.metrics.sums import Counters

EXPECTED = frozenset({"services", "frontends", "backends", "backend_counters", "connections"})
"""Maps that take too long to count at each scrape; the agent knows their numbers."""


class BackendHash(Counters, Protocol):
    """A hash by a number, with one value or a value for each CPU."""

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Yield all entries."""


class ConntrackUse(Protocol):
    """How full netfilter's table of connections is."""

    @property
    def entries(self) -> int:
        """Connections that netfilter follows."""

    @property
    def limit(self) -> int:
        """The most connections that it follows."""


class ConnectionTable(Protocol):
    """What the last pass over ``connections`` has counted."""

    @property
    def entries(self) -> int:
        """Its entries."""

    @property
    def open_connections(self) -> Mapping[int, int]:
        """TCP connections that are open, by the ids of counters of their backends."""

    @property
    def busiest_ports(self) -> int:
        """The most source ports in use from one address to one backend."""

    @property
    def port_limit(self) -> int:
        """How many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMaps:
    """Maps with counters, the names of their fields, and how full the other maps are.

    * ``build``: the digest of the programs.
    * ``capacities``: the most entries of each map that can become full, by name.
    * ``conntrack``: returns how full netfilter's table is; None if it follows no connections.
    * ``sizes``: functions that count the entries of those maps, but for :data:`EXPECTED`.
    """

    build: str
    counters: Counters
    counter_names: Sequence[str]
    refusals: BackendHash
    refusal_names: Sequence[str]
    failures: BackendHash
    failure_names: Sequence[str]
    connect_times: BackendHash
    shortest_connect_us: int
    backend_counters: Counters
    conntrack: Callable[[], ConntrackUse | None]
    capacities: Mapping[str, int]
    sizes: Mapping[str, Callable[[], int]]
