"""Batches of objects on their way into the cache, and the reports about them."""

from __future__ import annotations

import logging

from bpfsvc.agent.objects.cold_start import ColdStart
from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.http.healthz import Health
from bpfsvc.kube.source import Batch
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import Cache, ServiceKey

_NODE, _UNREADABLE = "node object", "unreadable"
"""Subjects of problems."""

_log = logging.getLogger("bpfsvc")


class ObjectIntake:
    """Puts batches into the cache; belongs to the agent's thread."""

    def __init__(
        self,
        cache: Cache,
        parse_errors: ParseErrors,
        cold_start: ColdStart | None,
        health: Health,
        metrics: Observer,
        reports: Reports,
    ) -> None:
        """``cold_start``: None where there is no snapshot."""
        self.cache = cache
        self._parse_errors = parse_errors
        self._cold_start = cold_start
        self._health = health
        self._metrics = metrics
        self._reports = reports

    def apply_batch(self, batch: Batch) -> set[ServiceKey]:
        """Put a batch into the cache; return the Services with entries that may differ now."""
        recalled = self._cold_start.end(batch) if self._cold_start else ()
        touched = self.cache.apply(batch.puts, batch.gone, batch.listed)
        touched |= self.cache.apply(recalled, ())
        self._reports.unusable(self._parse_errors.replace(batch.problems))
        self._metrics.unreadable(len(self._parse_errors))
        self._report_unreadable()
        self.report_node()
        return touched

    def report_node(self) -> None:
        """Report whether load balancers may use this node, once its object is known."""
        if self.cache.node_seen:
            self._health.clear_problem(_NODE)
            self._health.set_node_eligible(not self.cache.node.leaving)

    def report_missing_node(self, name: str) -> None:
        """Report that the API server has no object of this node, if it was not seen so far."""
        if self.cache.node_seen:
            return
        text = (
            f"the API server has no Node {name}: is this its name? --hostname-override sets another"
        )
        _log.warning("%s; until it is there, load balancers must not use this node", text)
        self._health.set_problem(_NODE, text)

    def _report_unreadable(self) -> None:
        """Report a file that cannot be read as a problem, and a single object as a note.

        A file may have held anything. An object of the API server is the same on all nodes: a
        problem would take load balancers from all of them.
        """
        files, single = self._parse_errors.texts()
        if files:
            self._health.set_problem(_UNREADABLE, files)
        else:
            self._health.clear_problem(_UNREADABLE)
        self._health.set_note(_UNREADABLE, single or None)

    def report_applied(self, batches: list[Batch]) -> None:
        """Report that the oldest batches that wait are in the kernel now."""
        self._metrics.applied(batches)
        self._health.updated(changes=len(batches))

    def report_started(self) -> None:
        """Report that Services work."""
        self._health.clear_problem("start")
