"""Services on their way into the kernel, and those who follow once they are there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from bpfsvc.agent.follower import Follower
from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.sync.held_back import find_held_back
from bpfsvc.agent.sync.service_writer import ServiceWriter
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.planner import Planner, Synced


class Syncer:
    """Has Services planned and written, in the agent's thread.

    ``now`` is in seconds of the monotonic clock.
    """

    def __init__(
        self,
        planner: Planner,
        writer: ServiceWriter,
        followers: Sequence[Follower],
        parse_errors: ParseErrors,
        metrics: Observer,
        reports: Reports,
    ) -> None:
        """``followers`` are called in this order."""
        self._planner = planner
        self._writer = writer
        self._followers = followers
        self._parse_errors = parse_errors
        self._metrics = metrics
        self._reports = reports

    # -- starting --

    def count_held(self) -> int:
        """Return how many Services the kernel holds."""
        return self._writer.count_services()

    def start(self, now: float) -> None:
        """Restore what an earlier agent left, and make the kernel hold all Services known.

        Of a Service that cannot be read, or whose endpoints cannot, the entries stay as an earlier
        agent wrote them, until it can be read or is gone, or its endpoints change.
        """
        self._writer.restore()
        for follower in self._followers:
            follower.restore()
        self._planner.held_back = self._hidden(self._planner.restored_keys())
        self._sync_all(now)
        if self._planner.held_back:
            self.report(self._planner.held_back)

    def report(self, keys: Iterable[ServiceKey]) -> None:
        """Report Services that are not planned to load balancers and metrics."""
        summaries = {key: self._planner.summary(key) for key in keys}
        for follower in self._followers:
            follower.report(summaries)

    # -- working --

    def sync(self, touched: set[ServiceKey], now: float) -> None:
        """Make the kernel hold some Services as they are known, and those held back no longer."""
        if held_back := set(self._planner.held_back):
            changed = {key for key in touched if self._planner.cache.lookup(key).slices}
            self._planner.held_back = self._hidden(held_back - changed)
            touched = touched | held_back.difference(self._planner.held_back)
        self._sync(touched, now)

    def sync_due(self, now: float) -> None:
        """Sync the Services with endpoints that get another share of connections by now."""
        due = self._planner.schedulings.growing(now)
        if due := due.union(*[follower.due(now) for follower in self._followers]):
            self._sync(due, now)

    def retry(self, now: float) -> None:
        """Try again to write the Services that found no room."""
        for follower in self._followers:
            follower.tidy()
        if self._planner.refused:
            refused = set(self._planner.refused)
            self._finish(self._planner.sync(refused, now, self._writer.write), now)

    def reconcile(self) -> None:
        """Repair what another program changed in the kernel."""
        self._writer.reconcile()

    def _hidden(self, keys: Iterable[ServiceKey]) -> set[ServiceKey]:
        return find_held_back(keys, self._parse_errors, self._planner)

    def _sync(self, touched: set[ServiceKey], now: float) -> None:
        began = time.monotonic()
        self._finish(self._planner.sync(touched, now, self._writer.write), now)
        if touched:
            self._report_synced(began, full=False)

    def _sync_all(self, now: float) -> None:
        """Make the kernel hold all Services known, and nothing else."""
        began = time.monotonic()
        self._finish(self._planner.sync_all(now, self._writer.write), now)
        self._report_synced(began, full=True)

    def _finish(self, synced: Synced, now: float) -> None:
        """Use the room that a sync has freed, then call the followers."""
        summaries = dict(synced.summaries)
        if synced.freed and self._planner.refused:
            refused = set(self._planner.refused)
            summaries |= self._planner.sync(refused, now, self._writer.write).summaries
        self._reports.without_room(self._planner.refused)
        self._metrics.refused(len(self._planner.refused))
        for follower in self._followers:
            follower.follow(summaries)

    def _report_synced(self, began: float, *, full: bool) -> None:
        seconds = time.monotonic() - began
        self._metrics.synced(seconds, full=full, complete=not self._planner.refused)
