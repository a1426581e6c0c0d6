"""The kernel's maps of Services: plans are written, and drift is repaired."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from bpfsvc.agent.follower import Follower
from bpfsvc.agent.history.changes import History
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.sync.change_log import is_logged, log_changes
from bpfsvc.base.errors import MapFull
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.changes import service_changes
from bpfsvc.services.plans.drift import find_drift
from bpfsvc.services.plans.plan import Plan
from bpfsvc.services.plans.registry import SERVICES

_log = logging.getLogger("bpfsvc")


class ServiceWriter:
    """Writes what the planner plans; belongs to the agent's thread."""

    def __init__(
        self,
        planner: Planner,
        maps: ServiceMaps,
        followers: Sequence[Follower],
        metrics: Observer,
        reports: Reports,
        history: History,
    ) -> None:
        """``followers`` repair their own maps together with the maps of Services."""
        self._planner = planner
        self._maps = maps
        self._followers = followers
        self._metrics = metrics
        self._reports = reports
        self._history = history

    def count_services(self) -> int:
        """Return how many Services the kernel holds."""
        return len({name.port[:2] for name in self._maps.read(SERVICES)})

    def restore(self) -> None:
        """Have the planner begin from what the kernel holds."""
        self._maps.know_destinations()
        self._planner.restore(self._maps.read)

    def write(self, plan: Plan) -> None:
        """Write a plan; when a map is full, repair what was written of the plan, and raise."""
        try:
            self._maps.execute(plan)
        except MapFull:
            # The planner must know what the kernel holds.
            self.repair_drift()
            raise
        self._metrics.written(plan)
        before = self._planner.applied_state
        if returned := self._history.note(plan, before):
            self._metrics.endpoints_returned(returned)
        if is_logged():
            log_changes(service_changes(plan.applied, before))

    def reconcile(self) -> None:
        """Repair what another program changed, and report how much it was."""
        if drift := self.repair_drift():
            self._reports.repaired(drift)

    def repair_drift(self) -> int:
        """Repair what another program changed; return how many entries differed."""
        began = time.monotonic()
        try:
            drift = self._repair()
        except MapFull as error:
            # Entries of another program take the room; the entries before them are repaired.
            self._reports.map_full("reconciliation", "not all entries could be repaired", error)
            return 0
        self._reports.clear_problem("reconciliation")
        self._metrics.drift_checked(time.monotonic() - began, drift)
        return drift

    def _repair(self) -> int:
        self._maps.know_destinations()
        planner = self._planner
        plan, drift = find_drift(planner.applied_state, self._maps.read, planner.spared_ids())
        self._maps.execute(plan)
        drift += sum([follower.repair() for follower in self._followers])
        return drift + self._maps.recount(self._planner.applied_state)
