"""Services on their way into the kernel, and what follows once they are there.

The planner makes plans, and each is written here. When a map is full, what the kernel holds is
repaired first, so that the planner knows what it counts on. After the entries come those who depend
on them: UDP clients of endpoints that stopped serving, TCP connections to endpoints that left, and
load balancers that ask for health.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from bpfsvc.agent.change_log import log_changes
from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.agent.flows.endpoint_removal import EndpointRemoval
from bpfsvc.agent.flows.quarantine import Quarantine
from bpfsvc.agent.flows.udp_cleanup import UdpCleanup
from bpfsvc.agent.metric_maps import open_metric_maps
from bpfsvc.agent.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.base.errors import MapFull
from bpfsvc.base.networks import Network
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.http.healthz import Health
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.faults import FaultReport
from bpfsvc.services.planner import Planner, Synced
from bpfsvc.services.plans.drift import find_drift
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import SERVICES
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.rules.no_local_endpoints import NoLocalEndpoints
from bpfsvc.services.rules.view import EndpointSummary

_log = logging.getLogger("bpfsvc")


class Syncer:
    """Writes what the planner plans; belongs to the agent's thread."""

    def __init__(
        self,
        planner: Planner,
        pinned: Pinned,
        collector: ConnectionGc,
        health: Health,
        health_checks: ServiceHealthChecks,
        parse_errors: ParseErrors,
        removal: EndpointRemoval,
        *,
        metrics: Observer,
        reports: Reports,
        with_sockets: bool,
        watch_sockets: Callable[[bool], None],
    ) -> None:
        """``with_sockets``: this node's sockets use the socket LB, and may have to be closed.

        ``watch_sockets``: has the kernel tell what happens to sockets, or not any more.
        """
        self._planner = planner
        self._pinned = pinned
        self._maps = ServiceMaps(pinned)
        self._collector = collector
        self._health = health
        self._health_checks = health_checks
        self._parse_errors = parse_errors
        self._metrics = metrics
        self._udp_cleanup = UdpCleanup(
            planner, pinned, collector, health, metrics, with_sockets=with_sockets
        )
        self._removal = removal
        self._quarantine = Quarantine(planner, pinned, metrics, reports, watch_sockets)
        self._no_local = NoLocalEndpoints()
        self._faults = FaultReport(planner)
        self._reports = reports
        self._refused: dict[ServiceKey, str] = {}
        self._holds_back = False
        self._service_networks: set[Network] | None = None
        self._opted_out: set[bytes] | None = None

    # -- starting --

    def count_held(self) -> int:
        """Return how many Services the kernel holds."""
        return len({name.port[:2] for name in self._maps.read(SERVICES)})

    def set_service_config(self, config: ServiceConfig) -> set[ServiceKey]:
        """Use other settings from the next sync on; return the Services that depend on them."""
        if config == self._planner.config:
            return set()
        self._planner.config = config
        return set(self._planner.cache.service_keys())

    def start(self) -> None:
        """Restore what an earlier agent left, and make the kernel hold all Services known.

        While a file is broken, it is unknown which Services it holds. What an earlier agent wrote
        of such Services stays as it is, until the file is fixed or something about them changes.
        """
        self._maps.know_destinations()
        self._planner.restore(self._maps.read)
        self._udp_cleanup.restore()
        self._metrics.opened(
            lambda: open_metric_maps(self._pinned),
            self._planner.applied_state,
            lambda: self._collector.entries,
        )
        if held_back := self._parse_errors.may_hide(self._planner.applied_state.keys()):
            self._holds_back = True
            self._sync(set(self._planner.cache.service_keys()) - held_back)
            self.report(held_back)
        else:
            self._sync_all()
        self.sync_service_networks()
        self.sync_opted_out_pods()

    # -- working --

    def sync(self, touched: set[ServiceKey]) -> None:
        """Make the kernel hold what is known of some Services; all, once nothing is hidden."""
        if touched:
            self._sync(touched)
        if self._holds_back and not self._parse_errors:
            self._holds_back = False
            self._sync_all()

    def _sync(self, touched: set[ServiceKey]) -> None:
        began = time.monotonic()
        self._finish(touched, self._planner.sync(touched, began, self._execute), began)
        if self._udp_cleanup.is_new:
            self._udp_cleanup.settle()
        self._report_synced(began, full=False)

    def _sync_all(self) -> None:
        """Make the kernel hold all Services known, and nothing else."""
        began = time.monotonic()
        synced = self._planner.sync_all(began, self._execute)
        self._finish(self._planner.cache.service_keys(), synced, began)
        self._udp_cleanup.settle()
        self._report_synced(began, full=True)

    def retry_refused(self) -> None:
        """Try again to write the Services that found no room."""
        if self._planner.refused:
            now = time.monotonic()
            refused = set(self._planner.refused)
            self._finish((), self._planner.sync(refused, now, self._execute), now)

    def forget_closed_sockets(self) -> None:
        """Make room for UDP sockets to come."""
        self._udp_cleanup.forget_closed()

    def grow_shares(self) -> None:
        """Write the Services in which the share of a new endpoint grows now."""
        if growing := self._planner.schedulings.growing(time.monotonic()):
            self._sync(growing)

    def judge_endpoints(self) -> None:
        """Write the Services of which an endpoint is left out from now on, or used again."""
        if changed := self._quarantine.judge(time.monotonic()):
            self._sync(changed)

    def sync_service_networks(self) -> None:
        """Write the networks of cluster IPs; the entries of Services come first."""
        now = self._planner.service_networks()
        if now == self._service_networks:
            return
        try:
            self._maps.set_service_networks(now)
        except MapFull as error:
            self._report_full("networks", "not all networks of cluster IPs are guarded", error)
            return
        self._health.clear_problem("networks")
        self._service_networks = now

    def sync_opted_out_pods(self) -> None:
        """Write which pods of this node do not want the socket LB.

        Until the pods have been listed, those that an earlier agent knew of stay.
        """
        cache = self._planner.cache
        now = cache.opted_out()
        if now == self._opted_out or not (now or cache.pods_seen):
            return
        try:
            self._maps.set_opted_out(now)
        except MapFull as error:
            self._report_full("pods", "not all pods that opted out of the socket LB do so", error)
            return
        self._health.clear_problem("pods")
        self._opted_out = now

    # -- drift --

    def repair_drift(self) -> int:
        """Repair what another program changed; return how many entries differed."""
        began = time.monotonic()
        try:
            drift = self._repair()
            self._health.clear_problem("reconciliation")
        except MapFull as error:
            # Entries of another program take the room; what could be repaired is.
            self._report_full("reconciliation", "not all entries could be repaired", error)
            return 0
        self._metrics.drift_checked(time.monotonic() - began, drift)
        return drift

    def _repair(self) -> int:
        """Make the kernel hold what was written; return how many entries differed."""
        self._maps.know_destinations()
        plan, drift = find_drift(self._planner.applied_state, self._maps.read)
        self._maps.execute(plan)
        if self._service_networks is not None:
            drift += self._maps.set_service_networks(self._service_networks)
        if self._opted_out is not None:
            drift += self._maps.set_opted_out(self._opted_out)
        drift += self._udp_cleanup.settle()
        return drift + self._maps.recount(self._planner.applied_state)

    # -- writing --

    def _execute(self, plan: Plan) -> None:
        """Write a plan; when a map is full, repair what was written of it and raise."""
        try:
            self._maps.execute(plan)
        except MapFull:
            self.repair_drift()
            raise
        self._metrics.written(plan)
        log_changes(plan, self._planner.applied_state)

    def _finish(self, touched: Iterable[ServiceKey], synced: Synced, now: float) -> None:
        """Use the room that a sync has freed, and hand on what follows from it."""
        summaries = dict(synced.summaries)
        if synced.freed and self._planner.refused:
            refused = set(self._planner.refused)
            summaries |= self._planner.sync(refused, now, self._execute).summaries
        found_room = self._report_refused()
        self._follow_up({key: summaries[key] for key in {*touched, *found_room}})

    def _report_refused(self) -> set[ServiceKey]:
        """Report every Service without room once; return those that found room since."""
        errors = self._planner.refused
        refused = {key: str(error) for key, error in errors.items()}
        new = {key for key, reason in refused.items() if self._refused.get(key) != reason}
        self._reports.without_room({key: errors[key] for key in errors if key in new})
        found_room = self._refused.keys() - refused.keys()
        self._refused = refused
        self._metrics.refused(len(refused))
        if refused:
            number, reason = len(refused), next(iter(refused.values()))
            are = f"{count_text(number, 'Service')} {'is' if number == 1 else 'are'}"
            self._health.set_problem("maps", f"{are} not up to date: {reason}")
        else:
            self._health.clear_problem("maps")
        return found_room

    def _report_full(self, subject: str, what: str, error: MapFull) -> None:
        """Report that a map is full; a problem that is known already is not reported again."""
        if self._health.set_problem(subject, str(error)):
            self._reports.map_full(what, error)

    # -- after writing --

    def report(self, keys: Iterable[ServiceKey]) -> None:
        """Report Services that are not planned to load balancers and metrics."""
        self._report({key: self._planner.summary(key) for key in keys})

    def _report(self, summaries: Mapping[ServiceKey, EndpointSummary]) -> None:
        self._health_checks.update((key, one.health_checks) for key, one in summaries.items())
        for key, one in summaries.items():
            self._no_local.update(key, one.without_local)

    def _follow_up(self, summaries: Mapping[ServiceKey, EndpointSummary]) -> None:
        """Hand on what else follows from a change, now that its entries are in the kernel."""
        self._report(summaries)
        self._udp_cleanup.follow(summaries)
        self._removal.follow(self._planner, summaries)
        self._quarantine.follow(summaries)
        self._reports.faults(self._faults.update(summaries))
        self._health.set_note("schedulers", self._faults.bad_schedulers())

    def _report_synced(self, began: float, *, full: bool) -> None:
        seconds = time.monotonic() - began
        self._metrics.synced(seconds, full=full, complete=not self._planner.refused)
        self._metrics.no_local_endpoints(self._no_local.counts())
