"""What only the kernel knows: its counters, and how full its maps are. Read when somebody asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from bpfsvc.bare import bare_package
from bpfsvc.datapath.bpf import Map
from bpfsvc.datapath.layout import Layout, MapLayout
from bpfsvc.datapath.pins import Pinned
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Sums
from bpfsvc.programmed import Ledger

with bare_package("prometheus_client"):
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_NOT_COUNTED = {"services", "frontends", "backends", "backend_counters", "connections"}
"""To count these takes too long to do it for everyone who asks."""

_AS_OTHERS = "endpoints"
"""It never has more rows than there are counters in use, and its size is theirs."""


def private(pinned: Pinned, name: str) -> Map:
    """Open a map once more: one :class:`Map` is not for two threads."""
    return Map(os.dup(pinned.map(name).fd), name)


class Kernel:
    """Reads maps for the registry."""

    def __init__(self, pinned: Pinned, ledger: Ledger, connections: Callable[[], int]) -> None:
        """``connections()`` gives the number of entries in the map of that name."""
        self._connections = connections
        self._layout: Layout = pinned.layout
        self._ledger = ledger
        self._counters = Sums(private(pinned, "counters"))
        self._capacities = {
            name: one.max_entries
            for name, one in pinned.layout.maps.items()
            if _fills_up(name, one)
        }
        self._maps = {
            name: private(pinned, name) for name in sorted(self._capacities.keys() - _NOT_COUNTED)
        }

    def collect(self) -> Iterator[Metric]:
        """Give the families, as a collector does."""
        yield from self._events()
        entries = GaugeMetricFamily(
            "bpfsvc_map_entries", "Rows in a map of the kernel", labels=("map",)
        )
        capacity = GaugeMetricFamily(
            "bpfsvc_map_capacity", "Rows that a map of the kernel has room for", labels=("map",)
        )
        counted = {name: found.count() for name, found in self._maps.items()}
        for name, rows in sorted({**counted, **self._known()}.items()):
            entries.add_metric((name,), rows)
            capacity.add_metric((name,), self._capacities[name])
        yield entries
        yield capacity

    def _known(self) -> dict[str, int]:
        """Say of the largest maps how many rows they should have, which is nearly as good."""
        ports = self._ledger.snapshot()
        return {
            "services": len(ports),
            "frontends": sum([len(one.flat_frontends) // 2 for one in ports]),
            "backends": sum([one.size for one in ports]),
            "backend_counters": sum(len(one.counter_ids) for one in Pace().through(ports)),
            "connections": self._connections(),
        }

    def _events(self) -> Iterator[Metric]:
        """Name counters by their fields in C, where what follows two underscores is the reason."""
        fields = self._layout.maps["counters"].value.names
        sums = self._counters.spread(self._counters.one(0))
        families: dict[str, CounterMetricFamily] = {}
        for field, count in zip(fields, sums, strict=True):
            event, _, reason = field.partition("__")
            if event not in families:
                families[event] = CounterMetricFamily(
                    f"bpfsvc_{event}",
                    f"Counted by the programs: {event.replace('_', ' ')}",
                    labels=("reason",) if reason else (),
                )
            families[event].add_metric((reason,) if reason else (), count)
        yield from families.values()


def _fills_up(name: str, one: MapLayout) -> bool:
    if name == "backend_counters":
        return True
    return one.type.endswith(("hash", "lpm_trie")) and name != _AS_OTHERS
