"""Endpoints that connections fail to: found out every second, left out, and reported.

Only for Services that ask for it (:mod:`bpfsvc.services.scheduling.quarantine`); without one,
nothing is read. The programs note how attempts to connect end, of packets and of sockets.
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


class Quarantine(Follower):
    """Judges the endpoints of one node's Services; belongs to the agent's thread."""

    def __init__(
        self,
        planner: Planner,
        pinned: Pinned,
        metrics: Observer,
        reports: Reports,
        watch_sockets: Callable[[bool], None],
    ) -> None:
        """``watch_sockets``: has the kernel tell what happens to sockets, or not any more."""
        self._planner = planner
        self._quarantines = planner.schedulings.quarantines
        self._metrics = metrics
        self._reports = reports
        self._watch_sockets = watch_sockets
        self._outcomes = BackendOutcomes(pinned)
        self._quarantined = QuarantinedMap(pinned)
        self._counters: dict[ServiceKey, dict[Place, list[int]]] = {}
        """The ids of the counters of each endpoint of the Services that ask for this."""
        self._shown: dict[int, float | None] | None = None
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
            self._outcomes.take()  # what was noted for a former agent
            self._watching = wanted
        self._show(0)

    def due(self, now: float) -> set[ServiceKey]:
        """Return the Services with an endpoint that is ejected, on trial or back by now."""
        if not self._counters:
            return set()
        outcomes = self._by_service(self._outcomes.take())
        changes = self._quarantines.step(now, outcomes)
        self._reports.quarantine(changes)
        began = sum(one.step in (Step.AWAY, Step.AWAY_AGAIN) for one in changes)
        self._show(began)
        return {one.service for one in changes}

    def _ids_of(self, key: ServiceKey) -> dict[Place, list[int]]:
        found: dict[Place, list[int]] = {}
        for port, one in self._planner.applied_state.of(key).items():
            if port.protocol == IPPROTO_TCP:
                for place, counters in one.counters().items():
                    found.setdefault(place, []).append(counters)
        return found

    def _by_service(self, noted: Mapping[int, Outcome]) -> dict[ServiceKey, dict[Place, Outcome]]:
        found: dict[ServiceKey, dict[Place, Outcome]] = {}
        if not noted:
            return found
        for key, places in self._counters.items():
            for place, ids in places.items():
                ends = [noted[one] for one in ids if one in noted]
                if ends:
                    sums = Outcome(*map(sum, zip(*ends, strict=True)))
                    found.setdefault(key, {})[place] = sums
        return found

    def _show(self, began: int) -> None:
        """Write who is left out, and who may be tried, if it has changed."""
        states = {
            counters: until
            for key, place, until in self._quarantines.states()
            for counters in self._counters.get(key, {}).get(place, ())
        }
        if states != self._shown:
            self._quarantined.set(states)
            self._shown = states
            away = sum(until is not None for _, _, until in self._quarantines.states())
            self._metrics.quarantines(away, began)
