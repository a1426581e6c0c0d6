"""Metrics as they are recorded, and their text for each scrape."""

from __future__ import annotations

import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from bpfsvc import __version__
from bpfsvc.base.fast_path import LEVELS, STACK, FastPathLevel
from bpfsvc.base.service_series import ALL, ServiceSeries
from bpfsvc.metrics.drops import ServiceDrops
from bpfsvc.metrics.exposition import exposition
from bpfsvc.metrics.families import BpfsvcFamilies, ServingFamilies, SyncFamilies
from bpfsvc.metrics.kernel import KernelFamilies
from bpfsvc.metrics.kernel_maps import ConnectionTable, KernelMaps
from bpfsvc.metrics.observer import BOTH, ApiContact, Batch, Observer
from bpfsvc.metrics.traffic import ServiceTraffic
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.plan import Plan

_PROXIERS = 2
"""kube-proxy counts a change of a Service once for each family."""

_RESET_PATHS = ("packets", "sockets")

_SLICE_KINDS = ("EndpointSlice", "Endpoints")

_VERSION_LABELS = {
    "major": "major",
    "minor": "minor",
    "git_version": "gitVersion",
    "git_commit": "gitCommit",
    "git_tree_state": "gitTreeState",
    "build_date": "buildDate",
    "go_version": "goVersion",
    "compiler": "compiler",
    "platform": "platform",
}
"""Labels of kubernetes_build_info, and their names in the API server's ``/version``."""


class Metrics(Observer):
    """Records every event of the agent."""

    def __init__(
        self,
        api_contacts: Callable[[], Iterable[ApiContact]] | None = None,
        *,
        series: ServiceSeries = ALL,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``api_contacts()`` is called at each scrape; None: there is no API server.

        ``series``: the service ports that are shown one by one.
        """
        self._series = series
        self._now = now
        self._began = now()
        self._monotonic = monotonic
        self._waiting: deque[float] = deque()
        """When the changes arrived that are not in the kernel yet."""
        self._lock = threading.Lock()
        self._changes = {"Service": 0, "EndpointSlice": 0}
        self._complete = True
        self._traffic: ServiceTraffic | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._sync = SyncFamilies(self._registry)
        self._serving = ServingFamilies(self._registry)
        self._own = BpfsvcFamilies(self._registry)
        self._drops = ServiceDrops(series)
        self._registry.register(self._drops)
        ProcessCollector(registry=self._registry)
        for path in _RESET_PATHS:
            self._own.removal_resets.labels(path)  # a rate needs the 0 before the first reset
        self._own.oldest_pending.set_function(self._oldest_pending)
        if api_contacts:
            self._registry.register(_ApiFamilies(api_contacts, now))
        self._own.build.labels(__version__, "").set(1)

    # -- for the metrics server --

    def render(self) -> Iterator[bytes]:
        """Yield the text in parts, with pauses in which other threads run."""
        traffic = self._traffic.render() if self._traffic else iter(())
        first = next(traffic, b"")  # what is read for it says how many counters are in use
        yield exposition(self._registry)
        yield first
        yield from traffic

    def scrape(self, *, gzip: bool = False) -> list[bytes]:
        """Return the text in parts, compressed if ``gzip``."""
        if not gzip:
            return list(self.render())
        packer = zlib.compressobj(level=1, wbits=16 + zlib.MAX_WBITS)
        return [*filter(None, map(packer.compress, self.render())), packer.flush()]

    # -- objects --

    def queued(self, batch: Batch) -> None:
        """Count changes that have arrived."""
        services, slices = _count(batch)
        with self._lock:
            self._waiting.append(self._monotonic())
            self._changes["Service"] += services
            self._changes["EndpointSlice"] += slices
            self._set_pending()
        for trigger in batch.triggers:
            if trigger.seconds >= self._began:
                self._own.watch_delay.observe(max(0.0, self._now() - trigger.seconds))
        if not (services or slices):
            return  # a Node changes every few minutes, and nothing waits for that
        self._sync.service_changes.inc(services)
        self._sync.endpoint_changes.inc(slices)
        for name in _names(BOTH):
            self._sync.queued_at.labels(name).set(self._now())

    def applied(self, batches: Iterable[Batch]) -> None:
        """Record when changes were in the kernel, and how long that took since their cause."""
        now, monotonic = self._now(), self._monotonic()
        for batch in batches:
            services, slices = _count(batch)
            with self._lock:
                arrived = self._waiting.popleft() if self._waiting else monotonic
                self._changes["Service"] -= services
                self._changes["EndpointSlice"] -= slices
                self._set_pending()
            if services or slices:
                self._own.write_delay.observe(monotonic - arrived)
            if self._complete and (services or slices):
                # Also if they changed nothing in the kernel.
                self._set_synced(BOTH)
            for trigger in batch.triggers:
                if trigger.seconds >= self._began:
                    name = f"IPv{trigger.family}"
                    self._sync.programming.labels(name).observe(max(0.0, now - trigger.seconds))

    def _set_pending(self) -> None:
        self._sync.service_changes_pending.set(max(0, self._changes["Service"]))
        self._sync.endpoint_changes_pending.set(max(0, self._changes["EndpointSlice"]))

    def _oldest_pending(self) -> float:
        """Return for how many seconds the oldest change has waited; 0 if none waits."""
        with self._lock:
            return self._monotonic() - self._waiting[0] if self._waiting else 0.0

    def unreadable(self, objects: int) -> None:
        """Set the number of objects or files that cannot be read."""
        self._own.unreadable.set(objects)

    def api_request(self, method: str, host: str, code: str, seconds: float) -> None:
        """Count a request to the API server."""
        self._serving.requests.labels(code, method, host).inc()
        self._serving.request_seconds.labels(method, host).observe(seconds)

    def api_server_version(self, version: Mapping[str, str]) -> None:
        """Show the API server's version; it replaces the one before."""
        self._serving.kubernetes.clear()
        labels = {label: version.get(name, "") for label, name in _VERSION_LABELS.items()}
        self._serving.kubernetes.labels(**labels).set(1)

    def snapshot_in_use(self, saved: float | None) -> None:
        """Record if the snapshot is in use."""
        self._own.snapshot.set(saved is not None)
        self._own.snapshot_saved_at.set(saved or 0)

    # -- the kernel --

    def opened(
        self,
        open_maps: Callable[[], KernelMaps],
        applied_state: AppliedState,
        connections: ConnectionTable,
    ) -> None:
        """Read the maps at each scrape from now on. Once only."""
        maps = open_maps()
        self._drops.ports = applied_state.snapshot
        self._own.build.clear()
        self._own.build.labels(__version__, maps.build).set(1)
        backends = None
        if not self._series.shows_none:
            traffic = ServiceTraffic(maps.backend_counters, applied_state, self._series)
            self._traffic, backends = traffic, lambda: traffic.backends
        self._registry.register(
            KernelFamilies(maps, applied_state, connections, self._series, backends)
        )

    def written(self, plan: Plan) -> None:
        """Keep what the backends that a plan has removed counted."""
        if self._traffic:
            self._traffic.written(plan)

    def synced(
        self,
        seconds: float,
        *,
        full: bool,
        families: Collection[int] = BOTH,
        complete: bool = True,
    ) -> None:
        """Record that Services were written to the kernel."""
        kind = self._sync.full_seconds if full else self._sync.partial_seconds
        for name in _names(families):
            self._sync.seconds.labels(name).observe(seconds)
            kind.labels(name).observe(seconds)
        self._complete = complete
        if complete:
            self._set_synced(families)

    def _set_synced(self, families: Collection[int]) -> None:
        for name in _names(families):
            self._sync.synced_at.labels(name).set(self._now())

    def drift_checked(self, seconds: float, drift: int) -> None:
        """Record that the kernel was compared with what was written."""
        self._own.drift_seconds.observe(seconds)
        self._own.drift_checked_at.set(self._now())
        self._own.drift.inc(drift)

    def refused(self, services: int) -> None:
        """Set the number of Services that are not up to date."""
        self._own.refused.set(services)

    def no_local_endpoints(self, counts: Mapping[tuple[str, int], int]) -> None:
        """Set the number of service ports of policy Local without local endpoints."""
        for (policy, family), count in counts.items():
            self._sync.no_local_endpoints.labels(policy, f"IPv{family}").set(count)

    def stale_udp_removed(self, seconds: float, removed: Mapping[int, int]) -> None:
        """Record a search for stale UDP entries."""
        for family, count in removed.items():
            self._serving.stale_udp_seconds.labels(f"IPv{family}").observe(seconds)
            self._serving.stale_udp_removed.labels(f"IPv{family}").inc(count)

    def removal_resets(self, connections: int, sockets: int) -> None:
        """Count connections that were reset because their endpoint left."""
        for path, count in zip(_RESET_PATHS, (connections, sockets), strict=True):
            self._own.removal_resets.labels(path).inc(count)

    def quarantines(self, endpoints: int, began: int) -> None:
        """Set the number of endpoints in quarantine, and count those that came there."""
        self._own.quarantined.set(endpoints)
        self._own.quarantines.inc(began)

    def endpoints_returned(self, endpoints: int) -> None:
        """Count endpoints that came back."""
        self._own.returned.inc(endpoints)

    def drops_elsewhere_counted(self) -> None:
        """Show the metric, which has no samples yet."""
        self._drops.begin()

    def dropped_elsewhere(self, service_id: int, reason: str, packets: int) -> None:
        """Count packets that other parts of the node have dropped."""
        self._drops.add(service_id, reason, packets)

    def attachments(self, interfaces: int, socket_programs: int) -> None:
        """Set the number of interfaces with programs, and of socket programs."""
        self._own.interfaces.set(interfaces)
        self._own.socket_programs.set(socket_programs)

    def interfaces_lost(self, interfaces: int) -> None:
        """Count interfaces found without their programs."""
        self._own.interfaces_lost.inc(interfaces)

    def fast_path_level(self, level: FastPathLevel) -> None:
        """Set the level of the fast path."""
        self._own.fast_path_used.set(level != STACK)
        for other in LEVELS:
            self._own.fast_path_level.labels(other).set(other == level)

    def pins_lost(self, pins: int) -> None:
        """Count pins that were removed, and restored."""
        self._own.pins_lost.inc(pins)

    # -- the servers --

    def health_response(self, path: str, status: int) -> None:
        """Count a response of ``/healthz`` or ``/livez``."""
        counter = self._serving.livez if path == "/livez" else self._serving.healthz
        counter.labels(str(status)).inc()


class _ApiFamilies:
    """The connections to the API server, as they are at each scrape."""

    def __init__(
        self, contacts: Callable[[], Iterable[ApiContact]], now: Callable[[], float]
    ) -> None:
        self._contacts = contacts
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield the families, as a collector does."""
        resource = ("resource",)
        connected = GaugeMetricFamily(
            "bpfsvc_api_connected",
            "1 while a resource of the API server is followed",
            None,
            resource,
        )
        heard = GaugeMetricFamily(
            "bpfsvc_api_last_contact_timestamp_seconds",
            "When the API server last sent something; 0 if never",
            None,
            resource,
        )
        lists = CounterMetricFamily("bpfsvc_api_lists", "Complete lists received", None, resource)
        watches = CounterMetricFamily("bpfsvc_api_watches", "Watches opened", None, resource)
        errors = CounterMetricFamily(
            "bpfsvc_api_errors", "Lists and watches that failed", None, resource
        )
        for contact in self._contacts():
            if contact.optional and not contact.connected:
                continue  # the cluster does not have this resource
            key = (contact.resource,)
            connected.add_metric(key, contact.connected)
            ago = time.monotonic() - contact.last_data
            heard.add_metric(key, self._now() - ago if contact.last_data else 0)
            lists.add_metric(key, contact.lists)
            watches.add_metric(key, contact.watches)
            errors.add_metric(key, contact.errors)
        yield from (connected, heard, lists, watches, errors)


def _count(batch: Batch) -> tuple[int, int]:
    """Return the changes of Services, counted as kube-proxy does, and of slices."""
    kinds = [key.kind for key in batch.gone]
    services, slices = kinds.count("Service"), sum(map(kinds.count, _SLICE_KINDS))
    for item in batch.puts:
        services += isinstance(item, Service)
        slices += isinstance(item, EndpointSlice)
    return _PROXIERS * services, slices


def _names(families: Iterable[int]) -> list[str]:
    return [f"IPv{family}" for family in families]
