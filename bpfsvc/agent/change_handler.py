"""Changes of objects and interfaces, handled together."""

from __future__ import annotations

from collections.abc import Sequence

from bpfsvc.agent.history.changes import History
from bpfsvc.agent.node.node_sync import NodeSync
from bpfsvc.agent.node_settings import NodeSettings
from bpfsvc.agent.objects.event_queue import Event
from bpfsvc.agent.objects.intake import ObjectIntake
from bpfsvc.agent.sync.syncer import Syncer
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.kube.source import Batch
from bpfsvc.services.cache import ServiceKey


class ChangeHandler:
    """Makes the kernel hold what has changed; belongs to the agent's thread."""

    def __init__(
        self,
        intake: ObjectIntake,
        node: NodeSync,
        settings: NodeSettings,
        syncer: Syncer,
        history: History,
    ) -> None:
        self._intake = intake
        self._node = node
        self._settings = settings
        self._syncer = syncer
        self._history = history

    def handle(self, events: Sequence[Event], now: float) -> None:
        """Handle events in their order; the Services that they touch are synced once, at ``now``.

        The pictures of interfaces are used at once.
        """
        touched: set[ServiceKey] = set()
        batches: list[Batch] = []
        for event in events:
            if isinstance(event, Interfaces):
                self._node.follow_network(event)
                continue
            batches.append(event)
            touched |= self._intake.apply_batch(event)
            if self._settings.is_outdated:
                touched |= self._settings.use_node()
                self._node.refresh()
        if batches:
            with self._history.caused_at(batches[0].arrived):
                self._syncer.sync(touched, now)
            self._intake.report_applied(batches)
