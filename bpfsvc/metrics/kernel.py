"""Metrics read from the kernel at each scrape: its counters, and how full its maps are."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfsvc.datapath.maps.layout import Layout, MapLayout
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.syscall import Map
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Sums
from bpfsvc.metrics.traffic import SERVICE_LABELS, service_labels
from bpfsvc.services.plans.applied import AppliedState

_NOT_COUNTED = {"services", "frontends", "backends", "backend_counters", "connections"}
"""Counting these takes too long for each scrape; :meth:`_expected` says how many there are."""

_SIZED_BY_COUNTERS = "endpoints"
"""It never has more entries than there are counters in use, and has their capacity."""


def private(pinned: Pinned, name: str) -> Map:
    """Open a map once more: a :class:`Map` is for one thread only."""
    return Map(os.dup(pinned.map(name).fd), name)


class KernelFamilies:
    """Reads maps for the registry."""

    def __init__(
        self,
        pinned: Pinned,
        applied_state: AppliedState,
        connections: Callable[[], int],
        *,
        services: bool,
    ) -> None:
        """``connections()`` returns the number of entries in the map of that name.

        ``services``: show what was refused of each Service too.
        """
        self._with_services = services
        self._connections = connections
        self._layout: Layout = pinned.layout
        self._applied_state = applied_state
        self._counters = Sums(private(pinned, "counters"))
        self._refusals = private(pinned, "refusals")
        self._capacities = {
            name: layout.max_entries
            for name, layout in pinned.layout.maps.items()
            if _fills_up(name, layout)
        }
        self._maps = {
            name: private(pinned, name) for name in sorted(self._capacities.keys() - _NOT_COUNTED)
        }

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a collector does."""
        yield from self._events()
        if self._with_services:
            yield self._refused()
        entries = GaugeMetricFamily(
            "bpfsvc_map_entries", "Entries of a map in the kernel", labels=("map",)
        )
        capacity = GaugeMetricFamily(
            "bpfsvc_map_capacity", "Entries that a map in the kernel has room for", labels=("map",)
        )
        counted = {name: opened.count() for name, opened in self._maps.items()}
        for name, count in sorted({**counted, **self._expected()}.items()):
            entries.add_metric((name,), count)
            capacity.add_metric((name,), self._capacities[name])
        yield entries
        yield capacity

    def _expected(self) -> dict[str, int]:
        """Return how many entries the largest maps should have, by name."""
        ports = self._applied_state.snapshot()
        return {
            "services": len(ports),
            "frontends": sum([len(port.flat_frontends) // 2 for port in ports]),
            "backends": sum([port.size for port in ports]),
            "backend_counters": sum(len(port.counter_ids) for port in Pace().over(ports)),
            "connections": self._connections(),
        }

    def _refused(self) -> Metric:
        """Return what was refused of each service port; ports without refusals are left out."""
        fields = self._layout.maps["refusals"].value.names
        sums = Sums(self._refusals)
        family = CounterMetricFamily(
            "bpfsvc_service_refused",
            "First packets and calls to a Service that were rejected or dropped",
            labels=(*SERVICE_LABELS, "action", "reason"),
        )
        ports = {one.service_id: one for one in self._applied_state.snapshot()}
        for key, counts in self._refusals.items():
            service_id = int.from_bytes(key, sys.byteorder)
            if service_id not in ports:
                continue
            labels = service_labels(ports[service_id])
            for field, count in zip(fields, sums.fields(sums.fold(counts)), strict=True):
                action, _, reason = field.partition("__")
                if count:
                    family.add_metric((*labels, action, reason), count)
        return family

    def _events(self) -> Iterator[Metric]:
        """Yield counters named by their fields in C; two underscores come before the reason."""
        fields = self._layout.maps["counters"].value.names
        sums = self._counters.fields(self._counters.entry(0))
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


def _fills_up(name: str, layout: MapLayout) -> bool:
    """True if entries are added to a map as objects are, so that it can be full."""
    if name == "backend_counters":
        return True
    return layout.type.endswith(("hash", "lpm_trie")) and name != _SIZED_BY_COUNTERS
