"""Outlier ejection: endpoints that connections fail to are ejected, tried again, and reported.

Only for Services that ask for it (:mod:`bpfsvc.services.scheduling.quarantine`); without such a
Service, nothing is read. The programs note how attempts to connect end, by packets and by sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from socket import IPPROTO_TCP

from bpfsvc.agent.follower import Follower, Summaries
from bpfsvc.agent.reports import Reports
from bpfsvc.datapath.maps.backend_outcomes import BackendOutcomes, QuarantinedMap
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place
from bpfsvc.services.planner import Planner
from bpfsvc.services.scheduling.quarantine import Outcome, Step


class OutlierEjection(Follower):
    """Ejects endpoints for the clients of one node; belongs to the agent's thread."""

    def __init__(
        self,
        planner: Planner,
        pinned: Pinned,
        metrics: Observer,
        reports: Reports,
        watch_sockets: Callable[[bool], None],
    ) -> None:
        """``watch_sockets``: has the kernel report what happens to sockets, or not any more."""
        self._planner = planner
        self._quarantines = planner.schedulings.quarantines
        self._metrics = metrics
        self._reports = reports
        self._watch_sockets = watch_sockets
        self._outcomes = BackendOutcomes(pinned)
        self._quarantined = QuarantinedMap(pinned)
        self._counters: dict[ServiceKey, dict[Place, list[int]]] = {}
        """Of the Services that ask for this: ids of the counters of each endpoint."""
        self._written: dict[int, float | None] | None = None
        self._watching: bool | None = None

    def follow(self, summaries: Summaries) -> None:
        """Note the endpoints of some Services."""
        for key, summary in summaries.items():
            if summary.watched is None:
                if key in self._counters:
                    del self._counters[key]
                continue  # as nearly all
            self._quarantines.set_groups(key, summary.watched)
            self._counters[key] = self._ids_of(key)
        wanted = bool(self._counters)
        if self._watching is not wanted:
            self._watch_sockets(wanted)
            self._outcomes.take()  # notes for an earlier agent
            self._watching = wanted
        self._write_states(0)

    def due(self, now: float) -> set[ServiceKey]:
        """Return the Services with an endpoint that is ejected, on trial or back by now."""
        if not self._counters:
            return set()
        outcomes = self._by_service(self._outcomes.take())
        changes = self._quarantines.step(now, outcomes)
        self._reports.quarantine(changes)
        began = sum(change.step in (Step.AWAY, Step.AWAY_AGAIN) for change in changes)
        self._write_states(began)
        return {change.service for change in changes}

    def _ids_of(self, key: ServiceKey) -> dict[Place, list[int]]:
        ids: dict[Place, list[int]] = {}
        for port, applied in self._planner.applied_state.of(key).items():
            if port.protocol == IPPROTO_TCP:
                for address, counters in applied.counters().items():
                    ids.setdefault(address, []).append(counters)
        return ids

    def _by_service(self, noted: Mapping[int, Outcome]) -> dict[ServiceKey, dict[Place, Outcome]]:
        outcomes: dict[ServiceKey, dict[Place, Outcome]] = {}
        if not noted:
            return outcomes
        for key, endpoints in self._counters.items():
            for address, ids in endpoints.items():
                of_endpoint = [noted[counters] for counters in ids if counters in noted]
                if of_endpoint:
                    sums = Outcome(*map(sum, zip(*of_endpoint, strict=True)))
                    outcomes.setdefault(key, {})[address] = sums
        return outcomes

    def _write_states(self, began: int) -> None:
        """Write which endpoints are ejected or on trial, if that has changed."""
        states = {
            counters: until
            for key, address, until in self._quarantines.states()
            for counters in self._counters.get(key, {}).get(address, ())
        }
        if states != self._written:
            self._quarantined.set(states)
            self._written = states
            ejected = sum(until is not None for _, _, until in self._quarantines.states())
            self._metrics.quarantines(ejected, began)
