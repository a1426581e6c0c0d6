"""The start without the source of objects: what the node serves until the source answers.

After a boot the maps are empty, and the snapshot is programmed. If an earlier agent left entries in
the kernel, these are newer than any file and stay as they are. Then the snapshot only has the Node,
which is needed to follow interfaces, and the answers for load balancers. An agent with another
build does not even attach: its programs have no entries yet. In each case the health page and the
log say so, until the source answers and its objects replace all of this.

The source may have objects that cannot be read. Their last good values are in the snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime

from bpfsvc.http.healthz import Health
from bpfsvc.kube.snapshot import SnapshotFile
from bpfsvc.kube.source import Batch, ParseError, origin
from bpfsvc.metrics.observer import Observer
from bpfsvc.model import ModelObject
from bpfsvc.services.cache import Cache

_log = logging.getLogger("bpfsvc")

_UNANSWERED = "the API server has not answered since the start"


class ColdStart:
    """Keeps the snapshot, and uses it where the kernel has nothing newer."""

    def __init__(
        self, snapshot: SnapshotFile, cache: Cache, health: Health, metrics: Observer
    ) -> None:
        self._snapshot = snapshot
        self._cache = cache
        self._health = health
        self._metrics = metrics
        self._reported = False
        self._serves_snapshot = False
        self._answered = False

    def begin(self, held: int) -> bool:
        """Begin without the source; return True if the cache now holds Services to program.

        ``held``: how many Services an earlier agent left in the kernel.
        """
        saved = self._snapshot.load()
        if saved is None:
            served = _left(held) if held else "nothing is served"
            self._report(f"{_UNANSWERED}, and there is no snapshot: {served}")
            return False
        self._cache.apply(saved.objects, ())
        if held:
            self._report(f"{_UNANSWERED}: {_left(held)}")
            return False
        self._serves_snapshot = True
        self._metrics.snapshot_in_use(saved.saved)
        since = datetime.fromtimestamp(saved.saved, UTC).isoformat(timespec="seconds")
        self._report(f"{_UNANSWERED}: serving the snapshot saved at {since}")
        return True

    def end(self, batch: Batch) -> list[ModelObject]:
        """Stop serving the snapshot if the source has sent everything; the snapshot is outdated.

        Returns, the first time, what the snapshot has of the objects that cannot be read.
        """
        if not batch.complete:
            return []
        recalled = [] if self._answered else self._recall(batch.problems)
        self._answered = True
        self._snapshot.changed()
        if self._reported:
            _log.info("initial sync complete")
            self._reported = False
            self._health.set_note("source", None)
        if self._serves_snapshot:
            self._serves_snapshot = False
            self._metrics.snapshot_in_use(None)
        return recalled

    def _recall(self, problems: Iterable[ParseError]) -> list[ModelObject]:
        broken = {problem.key for problem in problems if problem.key}
        saved = self._snapshot.load() if broken else None
        return [item for item in saved.objects if origin(item) in broken] if saved else []

    def save_if_due(self) -> None:
        """Save a snapshot of the objects known, if it is time."""
        if self._snapshot.is_due:
            self._snapshot.save(self._cache.objects())

    def finish(self) -> None:
        """Save what was not saved yet. To be called last."""
        self._snapshot.finish(self._cache.objects())

    def _report(self, text: str) -> None:
        """Report that Services may be out of date."""
        _log.warning("%s", text)
        self._reported = True
        self._health.set_note("source", text)


def _left(held: int) -> str:
    if held == 1:
        return "1 Service stays as an earlier agent left it"
    return f"{held} Services stay as an earlier agent left them"
