"""Followers that write nothing into the kernel: load balancers, people and metrics are told."""

from __future__ import annotations

from bpfsvc.agent.follower import Follower, Summaries
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.sync.metric_maps import open_metric_maps
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.metrics.kernel_maps import ConnectionTable
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.faults import FaultReport
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.no_local_endpoints import NoLocalEndpoints


class LocalEndpoints(Follower):
    """Tells load balancers and metrics which Services have endpoints on this node."""

    def __init__(self, health_checks: ServiceHealthChecks, metrics: Observer) -> None:
        self._health_checks = health_checks
        self._metrics = metrics
        self._without = NoLocalEndpoints()

    def follow(self, summaries: Summaries) -> None:
        """Report Services."""
        self._health_checks.set_checks(
            (key, summary.health_checks) for key, summary in summaries.items()
        )
        for key, summary in summaries.items():
            self._without.update(key, summary.without_local)
        self._metrics.no_local_endpoints(self._without.counts())

    def report(self, summaries: Summaries) -> None:
        """Report Services; it does not matter that this agent has not written them."""
        self.follow(summaries)


class Faults(Follower):
    """Tells people what Services ask for and do not get."""

    def __init__(self, planner: Planner, reports: Reports) -> None:
        self._faults = FaultReport(planner)
        self._reports = reports

    def follow(self, summaries: Summaries) -> None:
        """Report the faults that are new."""
        self._reports.faults(self._faults.update(summaries), self._faults.notes())


class TrafficMetrics(Follower):
    """Has metrics count from what an earlier agent left."""

    def __init__(
        self, planner: Planner, pinned: Pinned, metrics: Observer, connections: ConnectionTable
    ) -> None:
        self._planner = planner
        self._pinned = pinned
        self._metrics = metrics
        self._connections = connections

    def restore(self) -> None:
        """Begin to count: traffic before this moment is not this agent's."""
        self._metrics.opened(
            lambda: open_metric_maps(self._pinned),
            self._planner.applied_state,
            self._connections,
        )
