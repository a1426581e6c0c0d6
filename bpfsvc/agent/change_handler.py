"""Changes of objects and interfaces, handled together.

The interface of a pod is there before the pod is an endpoint. So before Services are synced, the
programs are attached to the interfaces that are there by then: by an interface without programs, a
masqueraded connection would reach the pod with its client's address, and break when they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        interfaces: Callable[[], Interfaces],
    ) -> None:
        """``interfaces``: return the newest picture of them, see ``Monitor.latest``."""
        self._intake = intake
        self._node = node
        self._settings = settings
        self._syncer = syncer
        self._history = history
        self._interfaces = interfaces

    def handle(self, events: Sequence[Event], now: float) -> None:
        """Handle events in their order; the Services that they touch are synced once, at ``now``.

        Of several pictures of interfaces only the newest one is used.
        """
        touched: set[ServiceKey] = set()
        batches: list[Batch] = []
        for event in events:
            if isinstance(event, Interfaces):
                self._follow_interfaces()
                continue
            batches.append(event)
            touched |= self._intake.apply_batch(event)
            if self._settings.is_outdated:
                touched |= self._settings.use_node()
                self._node.refresh()
        if batches:
            self._follow_interfaces()
            with self._history.caused_at(batches[0].arrived):
                self._syncer.sync(touched, now)
            self._intake.report_applied(batches)

    def _follow_interfaces(self) -> None:
        network = self._interfaces()
        if network is not self._node.network:
            self._node.follow_network(network)
