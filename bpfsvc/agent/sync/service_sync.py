"""The Services of one node: planned, written into the kernel, and followed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack

from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.agent.flows.endpoint_removal import EndpointRemoval
from bpfsvc.agent.flows.quarantine import Quarantine
from bpfsvc.agent.flows.udp_cleanup import UdpCleanup
from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.sync.cluster_maps import ClusterMaps
from bpfsvc.agent.sync.followers import Faults, LocalEndpoints, TrafficMetrics
from bpfsvc.agent.sync.service_writer import ServiceWriter
from bpfsvc.agent.sync.syncer import Syncer
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.planner import Planner


class ServiceSync:
    """Belongs to the agent's thread; ``now`` is in seconds of the monotonic clock."""

    def __init__(
        self,
        planner: Planner,
        pinned: Pinned,
        parse_errors: ParseErrors,
        metrics: Observer,
        reports: Reports,
        *,
        gc: ConnectionGc,
        health_checks: ServiceHealthChecks,
        with_sockets: bool,
        watch_sockets: Callable[[bool], None],
        ending: ExitStack,
    ) -> None:
        """``with_sockets``: this node's sockets use the socket LB, and may have to be closed.

        ``watch_sockets``: has the kernel report what happens to sockets, or not any more.
        """
        maps = ServiceMaps(pinned)
        self._planner = planner
        self._cluster_maps = ClusterMaps(planner, maps, reports)
        self._udp_cleanup = UdpCleanup(planner, pinned, metrics, reports, with_sockets=with_sockets)
        self._quarantine = Quarantine(planner, pinned, metrics, reports, watch_sockets)
        removal = EndpointRemoval(planner, pinned, metrics, with_sockets=with_sockets)
        ending.callback(removal.stop)
        followers = (
            TrafficMetrics(planner, pinned, metrics, lambda: gc.entries),
            LocalEndpoints(health_checks, metrics),
            self._udp_cleanup,
            removal,
            self._quarantine,
            Faults(planner, reports),
        )
        repaired = (self._cluster_maps, self._udp_cleanup)
        self._writer = ServiceWriter(planner, maps, repaired, metrics, reports)
        self._syncer = Syncer(planner, self._writer, followers, parse_errors, metrics, reports)

    # -- starting --

    def count_held(self) -> int:
        """Return how many Services the kernel holds."""
        return self._writer.count_services()

    def start(self, now: float) -> None:
        """Restore what an earlier agent left, and make the kernel hold all Services known."""
        held_back = self._syncer.start(now)
        self._syncer.report(held_back)
        self._cluster_maps.write()

    def report(self, keys: Iterable[ServiceKey]) -> None:
        """Report Services that are not planned to load balancers and metrics."""
        self._syncer.report(keys)

    # -- working --

    def sync(self, touched: set[ServiceKey], now: float) -> None:
        """Make the kernel hold what is known of some Services, and of the cluster."""
        self._syncer.sync(touched, now)
        self._cluster_maps.write()

    def sync_due(self, now: float) -> None:
        """Sync the Services whose endpoints count differently by now. To be called each second.

        These are new endpoints with a growing share, and endpoints that are ejected or back.
        """
        self._syncer.sync(self._planner.schedulings.growing(now), now)
        self._syncer.sync(self._quarantine.judge(now), now)

    def retry(self, now: float) -> None:
        """Try again to write the Services that found no room, and make room for UDP sockets."""
        self._syncer.retry_refused(now)
        self._udp_cleanup.forget_closed()

    def reconcile(self) -> None:
        """Repair what another program changed in the kernel."""
        self._writer.reconcile()
