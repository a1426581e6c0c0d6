"""Objects on their way from the source, by a thread of its own, into the cache."""

from __future__ import annotations

import threading
import time

from bpfsvc.agent.objects.cold_start import ColdStart
from bpfsvc.agent.objects.event_queue import EventQueue
from bpfsvc.agent.objects.intake import ObjectIntake
from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.config.config import Config
from bpfsvc.http.healthz import Health
from bpfsvc.kube.snapshot import SnapshotFile
from bpfsvc.kube.source import Batch, Source
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import Cache


class ObjectFeed:
    """The queue, and what belongs to the agent's thread at its end."""

    def __init__(
        self, config: Config, source: Source, health: Health, metrics: Observer, reports: Reports
    ) -> None:
        self.source = source
        self.events = EventQueue()
        # Manifests name all pods; an API server has named them when it has listed them.
        self.cache = Cache(
            config.node_name, config.address_override, pods_seen=config.manifests is not None
        )
        self.parse_errors = ParseErrors()
        self.cold_start: ColdStart | None = None
        if config.last_good:
            snapshot = SnapshotFile(config.last_good, config.node_name)
            self.cold_start = ColdStart(snapshot, self.cache, health, metrics)
        self.intake = ObjectIntake(
            self.cache, self.parse_errors, self.cold_start, health, metrics, reports
        )
        self._health = health
        self._metrics = metrics
        self.stopped = threading.Event()
        """Set by :meth:`stop`."""
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)

    def start(self) -> None:
        """Begin to read the source."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon, and the queue; safe to call from a signal handler."""
        self.stopped.set()
        self.events.put(None)

    def save_snapshot_if_due(self) -> None:
        """Save the objects known, if there is a snapshot and it is time."""
        if self.cold_start:
            self.cold_start.save_if_due()

    def save_snapshot(self) -> None:
        """Save what was not saved yet. To be called last."""
        if self.cold_start:
            self.cold_start.finish()

    def join(self) -> None:
        """Wait a second for the thread, which may wait for a server."""
        if self._thread.ident is not None:
            self._thread.join(timeout=1)

    def _run(self) -> None:
        try:
            self.source.follow(self.stopped, self._put)
            self.events.put(None)
        except Exception as error:
            # Whatever it is: without a source the agent must not go on as if all were well.
            self.events.put(error)

    def _put(self, batch: Batch) -> None:
        self._health.queued()
        self._metrics.queued(batch)
        self.events.put(batch._replace(arrived=time.monotonic()))
