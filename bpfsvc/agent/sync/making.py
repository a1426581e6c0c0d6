"""A syncer with all its followers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.agent.flows.endpoint_removal import EndpointRemoval
from bpfsvc.agent.flows.outlier_ejection import OutlierEjection
from bpfsvc.agent.flows.udp_cleanup import UdpCleanup
from bpfsvc.agent.history.changes import History
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
from bpfsvc.services.planner import Planner


def make_syncer(
    planner: Planner,
    pinned: Pinned,
    parse_errors: ParseErrors,
    metrics: Observer,
    reports: Reports,
    history: History,
    *,
    gc: ConnectionGc,
    health_checks: ServiceHealthChecks,
    with_sockets: bool,
    watch_sockets: Callable[[bool], None],
    ending: ExitStack,
) -> Syncer:
    """Return a syncer; ``ending`` stops the threads of its followers.

    * ``with_sockets``: this node's sockets use the socket LB, and may have to be closed.
    * ``watch_sockets``: has the kernel report what happens to sockets, or not any more.
    """
    maps = ServiceMaps(pinned)
    removal = EndpointRemoval(planner, pinned, metrics, with_sockets=with_sockets)
    ending.callback(removal.stop)
    followers = (
        TrafficMetrics(planner, pinned, metrics, gc),
        ClusterMaps(planner, maps, reports),
        LocalEndpoints(health_checks, metrics),
        UdpCleanup(planner, pinned, metrics, reports, with_sockets=with_sockets),
        removal,
        OutlierEjection(planner, pinned, metrics, reports, watch_sockets),
        Faults(planner, reports),
    )
    writer = ServiceWriter(planner, maps, followers, metrics, reports, history)
    return Syncer(planner, writer, followers, parse_errors, metrics, reports)
