"""What is served as long as the source of objects has not answered.

After a boot the maps are empty, and the last good picture is programmed. If an earlier agent has
left its work in the kernel, that is newer than any file and is left alone; the file only tells who
this node is, without which interfaces cannot be followed, and what load balancers are answered. An
agent of another build does not even do that: its programs wait for their rows. Either way people
are told, until the source answers: what it tells then replaces all of this.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from bpfsvc.cluster import Cluster
from bpfsvc.health import Health
from bpfsvc.lastgood import LastGood
from bpfsvc.metrics.observer import Observer
from bpfsvc.sources import Batch

_log = logging.getLogger("bpfsvc")

_UNANSWERED = "there is no picture from the API server since the start"


class StandIn:
    """Keeps the file, and uses it where there is nothing else."""

    def __init__(
        self, last_good: LastGood, cluster: Cluster, health: Health, metrics: Observer
    ) -> None:
        self._last_good = last_good
        self._cluster = cluster
        self._health = health
        self._metrics = metrics
        self._noted = False
        self._stood_in = False

    def begin(self, held: int) -> bool:
        """Do without the source; tell whether the cluster is now what is to be programmed.

        ``held``: how many Services an earlier agent has left in the kernel.
        """
        picture = self._last_good.load()
        if picture is None:
            stays = f"{held} Services stay as they are" if held else "nothing is served"
            self._note(f"{_UNANSWERED}, and there is no last good state: {stays}")
            return False
        self._cluster.apply(picture.objects, ())
        if held:
            self._note(f"{_UNANSWERED}: {held} Services stay as an earlier agent left them")
            return False
        self._stood_in = True
        self._metrics.standing_in(picture.saved)
        since = datetime.fromtimestamp(picture.saved, UTC).isoformat(timespec="seconds")
        self._note(f"{_UNANSWERED}: serving the last good state, saved at {since}")
        return True

    def answered(self, batch: Batch) -> None:
        """Take note of what the source tells."""
        if not batch.complete:
            return
        self._last_good.changed()
        if self._noted:
            self._note(None)
        if self._stood_in:
            self._stood_in = False
            self._metrics.standing_in(None)

    def save(self) -> None:
        """Save what is known, if it is time."""
        if self._last_good.is_due:
            self._last_good.save(self._cluster.objects())

    def finish(self) -> None:
        """Save what was not saved yet. The last call of all."""
        self._last_good.finish(self._cluster.objects())

    def _note(self, text: str | None) -> None:
        """Tell people that what is served may be out of date; with None, that it is not."""
        if text:
            _log.warning("%s", text)
        else:
            _log.info("the API server has told everything: its state is in force")
        self._noted = bool(text)
        self._health.note("source", text)
