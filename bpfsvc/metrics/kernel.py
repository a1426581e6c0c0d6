"""Metrics read from the kernel at each scrape: its counters, and how full its maps are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfsvc.metrics.kernel_maps import KernelMaps
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Sums
from bpfsvc.metrics.traffic import SERVICE_LABELS, service_labels
from bpfsvc.services.plans.applied import AppliedState


class KernelFamilies:
    """Reads maps for the registry."""

    def __init__(
        self,
        maps: KernelMaps,
        applied_state: AppliedState,
        connections: Callable[[], int],
        *,
        services: bool,
    ) -> None:
        """``connections()`` returns the number of entries in the map of that name.

        ``services``: show the refusals of each Service too.
        """
        self._maps = maps
        self._applied_state = applied_state
        self._connections = connections
        self._with_services = services
        self._counters = Sums(maps.counters)
        self._refusals = Sums(maps.refusals)

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
        sizes = {name: count() for name, count in self._maps.sizes.items()}
        for name, size in sorted((sizes | self._expected()).items()):
            entries.add_metric((name,), size)
            capacity.add_metric((name,), self._maps.capacities[name])
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
        """Return the refusals of each service port that has any."""
        fields, sums = self._maps.refusal_names, self._refusals
        family = CounterMetricFamily(
            "bpfsvc_service_refused",
            "First packets and calls to a Service that were rejected or dropped",
            labels=(*SERVICE_LABELS, "action", "reason"),
        )
        ports = {port.service_id: port for port in self._applied_state.snapshot()}
        for key, counts in self._maps.refusals.items():
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
        fields = self._maps.counter_names
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
