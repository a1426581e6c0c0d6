"""Metrics that are remembered, and given as text to whoever asks."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from bpfsvc import __version__
from bpfsvc.bare import bare_package
from bpfsvc.datapath.pins import Pinned
from bpfsvc.metrics.families import CollectorRegistry, KubeProxy, Own, ProcessCollector
from bpfsvc.metrics.kernel import Kernel, private
from bpfsvc.metrics.observer import BOTH, Contact, Observer
from bpfsvc.metrics.text import render
from bpfsvc.metrics.traffic import Traffic
from bpfsvc.plan import Plan
from bpfsvc.programmed import Ledger
from bpfsvc.sources import Batch

with bare_package("prometheus_client"):
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_PROXIERS = 2
"""kube-proxy counts a change of a Service once for each family."""

_AS_SLICES = ("EndpointSlice", "Endpoints")

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
"""Labels of kubernetes_build_info, and what ``/version`` of the API server calls them."""


class Metrics(Observer):
    """Remembers what it is told."""

    def __init__(self, *, services: bool = True, now: Callable[[], float] = time.time) -> None:
        """``services``: traffic is told for each Service, not only for the node."""
        self._with_services = services
        self._now = now
        self._began = now()
        self._lock = threading.Lock()
        self._changes = {"Service": 0, "EndpointSlice": 0}
        self._well = True
        self._traffic: Traffic | None = None
        self._registry = CollectorRegistry(auto_describe=False)
        self._proxy = KubeProxy(self._registry)
        self._own = Own(self._registry)
        ProcessCollector(registry=self._registry)
        self._own.build.labels(__version__, "").set(1)

    # -- asked --

    def render(self) -> Iterator[bytes]:
        """Give the text in parts, with pauses in which others get on."""
        for text in render(self._registry.collect()):
            yield text.encode()
        if self._traffic and self._with_services:
            yield from self._traffic.render()

    def scrape(self, *, gzip: bool = False) -> list[bytes]:
        """Give the text in parts, compressed if wanted."""
        if not gzip:
            return list(self.render())
        packer = zlib.compressobj(level=1, wbits=16 + zlib.MAX_WBITS)
        return [*filter(None, map(packer.compress, self.render())), packer.flush()]

    # -- told: objects --

    def queued(self, batch: Batch) -> None:
        """Note that changes have arrived."""
        services, slices = _count(batch)
        with self._lock:
            self._changes["Service"] += services
            self._changes["EndpointSlice"] += slices
            self._tell_pending()
        if not (services or slices):
            return  # a Node tells of itself every few minutes, and nobody waits for that
        self._proxy.service_changes.inc(services)
        self._proxy.endpoint_changes.inc(slices)
        for name in _names(BOTH):
            self._proxy.queued_at.labels(name).set(self._now())

    def applied(self, batches: Iterable[Batch]) -> None:
        """Note that changes are in the kernel, and how long that took since their cause."""
        now = self._now()
        for batch in batches:
            services, slices = _count(batch)
            with self._lock:
                self._changes["Service"] -= services
                self._changes["EndpointSlice"] -= slices
                self._tell_pending()
            if self._well and (services or slices):
                # Also where nothing came of them.
                self._tell_synced(BOTH)
            for trigger in batch.triggers:
                if trigger.seconds >= self._began:
                    name = f"IPv{trigger.family}"
                    self._proxy.programming.labels(name).observe(max(0.0, now - trigger.seconds))

    def _tell_pending(self) -> None:
        self._proxy.service_changes_pending.set(max(0, self._changes["Service"]))
        self._proxy.endpoint_changes_pending.set(max(0, self._changes["EndpointSlice"]))

    def unreadable(self, objects: int) -> None:
        """Say how many objects or files cannot be read."""
        self._own.unreadable.set(objects)

    def contacts(self, ask: Callable[[], Iterable[Contact]]) -> None:
        """Say whom to ask about the API server."""
        self._registry.register(_Contacts(ask, self._now))

    def asked(self, method: str, host: str, code: str, seconds: float) -> None:
        """Note a request to the API server."""
        self._proxy.requests.labels(code, method, host).inc()
        self._proxy.request_seconds.labels(method, host).observe(seconds)

    def kubernetes(self, version: Mapping[str, str]) -> None:
        """Say what the API server's ``/version`` says; another one takes its place."""
        self._proxy.kubernetes.clear()
        labels = {label: version.get(name, "") for label, name in _VERSION_LABELS.items()}
        self._proxy.kubernetes.labels(**labels).set(1)

    def standing_in(self, saved: float | None) -> None:
        """Say that the last good state is served, or no more."""
        self._own.last_good.set(saved is not None)
        self._own.last_good_at.set(saved or 0)

    # -- told: the kernel --

    def opened(self, pinned: Pinned, ledger: Ledger, connections: Callable[[], int]) -> None:
        """Say where traffic is counted. Once only."""
        self._own.build.clear()
        self._own.build.labels(__version__, pinned.layout.digest).set(1)
        self._registry.register(Kernel(pinned, ledger, connections))
        if self._with_services:
            self._traffic = Traffic(private(pinned, "backend_counters"), ledger)

    def written(self, plan: Plan) -> None:
        """Note that a plan was executed."""
        if self._traffic:
            self._traffic.written(plan)

    def synced(
        self, seconds: float, *, full: bool, families: Collection[int] = BOTH, well: bool = True
    ) -> None:
        """Note that Services were brought into the kernel."""
        kind = self._proxy.full_sync if full else self._proxy.partial_sync
        for name in _names(families):
            self._proxy.sync.labels(name).observe(seconds)
            kind.labels(name).observe(seconds)
        self._well = well
        if well:
            self._tell_synced(families)

    def _tell_synced(self, families: Collection[int]) -> None:
        for name in _names(families):
            self._proxy.synced_at.labels(name).set(self._now())

    def reconciled(self, seconds: float, drift: int) -> None:
        """Note that the kernel was compared with what was written."""
        self._own.reconciled.observe(seconds)
        self._own.reconciled_at.set(self._now())
        self._own.drift.inc(drift)

    def refused(self, services: int) -> None:
        """Say how many Services found no room."""
        self._own.refused.set(services)

    def no_local(self, counts: Mapping[tuple[str, int], int]) -> None:
        """Say how many service ports of policy Local find nobody here."""
        for (policy, family), count in counts.items():
            self._proxy.no_local.labels(policy, f"IPv{family}").set(count)

    def stale_udp(self, seconds: float, removed: Mapping[int, int]) -> None:
        """Note that stale UDP entries were looked for."""
        for family, count in removed.items():
            self._proxy.stale_udp.labels(f"IPv{family}").observe(seconds)
            self._proxy.stale_udp_removed.labels(f"IPv{family}").inc(count)

    def attached(self, interfaces: int, socket_programs: int) -> None:
        """Say how much is attached."""
        self._own.interfaces.set(interfaces)
        self._own.socket_programs.set(socket_programs)

    def lost(self, interfaces: int) -> None:
        """Note that programs were gone."""
        self._own.lost.inc(interfaces)

    # -- told: who asks --

    def answered(self, path: str, status: int) -> None:
        """Note an answer of ``/healthz`` or ``/livez``."""
        counter = self._proxy.livez if path == "/livez" else self._proxy.healthz
        counter.labels(str(status)).inc()


class _Contacts:
    """Asks how it stands with the API server, when the registry is asked."""

    def __init__(self, ask: Callable[[], Iterable[Contact]], now: Callable[[], float]) -> None:
        self._ask = ask
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Give the families, as a collector does."""
        resource = ("resource",)
        connected = GaugeMetricFamily(
            "bpfsvc_api_connected",
            "1 while a resource of the API server is followed",
            None,
            resource,
        )
        heard = GaugeMetricFamily(
            "bpfsvc_api_last_contact_timestamp_seconds",
            "When the API server was last heard of; 0 if never",
            None,
            resource,
        )
        lists = CounterMetricFamily("bpfsvc_api_lists", "Complete lists taken", None, resource)
        watches = CounterMetricFamily("bpfsvc_api_watches", "Watches opened", None, resource)
        errors = CounterMetricFamily(
            "bpfsvc_api_errors", "Lists and watches that failed", None, resource
        )
        for one in self._ask():
            if one.optional and not one.connected:
                continue  # what a cluster does not have is no contact that was lost
            key = (one.resource,)
            connected.add_metric(key, one.connected)
            ago = time.monotonic() - one.heard
            heard.add_metric(key, self._now() - ago if one.heard else 0)
            lists.add_metric(key, one.lists)
            watches.add_metric(key, one.watches)
            errors.add_metric(key, one.errors)
        yield from (connected, heard, lists, watches, errors)


def _count(batch: Batch) -> tuple[int, int]:
    """Count the changes of Services, as kube-proxy does, and of slices."""
    kinds = [one.key.kind for one in batch.puts] + [key.kind for key in batch.gone]
    return _PROXIERS * kinds.count("Service"), sum(map(kinds.count, _AS_SLICES))


def _names(families: Iterable[int]) -> list[str]:
    return [f"IPv{family}" for family in families]
