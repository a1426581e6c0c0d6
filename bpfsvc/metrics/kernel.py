"""Metrics read from the kernel at each scrape: its counters, and how full its maps are."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.choice import Choice
from bpfsvc.metrics.connect_times import ServiceConnectTimes
from bpfsvc.metrics.failures import ServiceFailures
from bpfsvc.metrics.kernel_maps import ConnectionTable, KernelMaps
from bpfsvc.metrics.open_connections import ServiceOpenConnections
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Sums
from bpfsvc.metrics.traffic import SERVICE_LABELS, labelled
from bpfsvc.services.plans.applied import AppliedState


class KernelFamilies:
    """Reads maps for the registry."""

    def __init__(
        self,
        maps: KernelMaps,
        applied_state: AppliedState,
        connections: ConnectionTable,
        series: ServiceSeries,
        backends: Callable[[], int] | None = None,
    ) -> None:
        """``connections``: what is known of the map of that name.

        ``backends()``: the number of counters in use, where it is known.

        ``series``: the service ports whose refusals are shown one by one.
        """
        self._maps = maps
        self._applied_state = applied_state
        self._connections = connections
        self._backends = backends
        self._series = series
        self._counters = Sums(maps.counters)
        self._refusals = Sums(maps.refusals)
        self._choice = Choice(series, self._refusals)
        self._failures = ServiceFailures(maps.failures, maps.failure_names, applied_state, series)
        self._open = ServiceOpenConnections(connections, applied_state, series)
        self._connect_times = ServiceConnectTimes(
            maps.connect_times, maps.shortest_connect_us, applied_state, series
        )
        self._lock = threading.Lock()
        self._refused_before: dict[int, int] = {}
        self._expected_of: tuple[int, dict[str, int]] = -1, {}

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a collector does."""
        yield from self._events()
        if not self._series.shows_none:
            yield self._refused()
            yield self._failures.collect()
            yield self._connect_times.collect()
            yield from self._open.collect()
        yield from self._netfilter()
        yield from self._source_ports()
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

    def _netfilter(self) -> Iterator[Metric]:
        """Yield how full netfilter's table of connections is, where it follows connections."""
        if conntrack := self._maps.conntrack():
            yield GaugeMetricFamily(
                "bpfsvc_nf_conntrack_entries",
                "Connections that netfilter follows in the node's network namespace",
                conntrack.entries,
            )
            yield GaugeMetricFamily(
                "bpfsvc_nf_conntrack_entries_limit",
                "The most connections that netfilter follows",
                conntrack.limit,
            )

    def _source_ports(self) -> Iterator[Metric]:
        """Yield how near the busiest backend is to the end of its source ports."""
        yield GaugeMetricFamily(
            "bpfsvc_busiest_source_ports",
            "The most source ports in use from one address of the node to one backend",
            self._connections.busiest_ports,
        )
        yield GaugeMetricFamily(
            "bpfsvc_busiest_source_ports_limit",
            "How many of them there are",
            self._connections.port_limit,
        )

    def _expected(self) -> dict[str, int]:
        """Return how many entries the largest maps should have, by name."""
        version, counted = self._expected_of
        now = self._applied_state.version
        if version != now:
            ports = self._applied_state.snapshot()
            counted = {
                "services": len(ports),
                "frontends": sum([len(port.flat_frontends) // 2 for port in ports]),
                "backends": sum([port.size for port in ports]),
            }
            if not self._backends:
                backends = sum(len(port.counter_ids) for port in Pace().over(ports))
                counted["backend_counters"] = backends
            self._expected_of = now, counted
        known = {"backend_counters": self._backends()} if self._backends else {}
        return counted | known | {"connections": self._connections.entries}

    def _refused(self) -> Metric:
        """Return the refusals of the service ports that have any, as far as they are shown."""
        family = CounterMetricFamily(
            "bpfsvc_service_refused",
            "First packets and calls to a Service that were rejected or dropped",
            labels=(*SERVICE_LABELS, "action", "reason"),
        )
        fields, sums = self._maps.refusal_names, self._refusals
        ports = {port.service_id: port for port in self._applied_state.snapshot()}
        counted = [
            (ports[service_id], counts)
            for key, raw in self._maps.refusals.items()
            if (service_id := int.from_bytes(key, sys.byteorder)) in ports
            and (counts := sums.fold(raw))
        ]
        with self._lock:
            now = {applied.service_id: counts for applied, counts in counted}
            for service_id in self._refused_before.keys() - now.keys():
                self._choice.removed(
                    service_id, partial(self._refused_before.__getitem__, service_id)
                )
            self._refused_before = now
            shown, others = self._choice.split(counted)
        for labels, numbers in labelled(shown, others, sums.fields):
            for field, count in zip(fields, numbers, strict=True):
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
