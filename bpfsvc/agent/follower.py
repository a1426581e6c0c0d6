"""The interface of all that follows a sync: load balancers, clients, connections, metrics."""

from __future__ import annotations

from collections.abc import Mapping

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.rules.view import EndpointSummary

Summaries = Mapping[ServiceKey, EndpointSummary]


class Follower:
    """Follows the sync of Services, in the agent's thread. Each method does nothing here."""

    def restore(self) -> None:
        """Take over what an earlier agent left: the planner holds what was restored, no more."""

    def follow(self, summaries: Summaries) -> None:
        """Act on Services that were planned; what the planner did not refuse is in the kernel."""

    def report(self, summaries: Summaries) -> None:
        """Report Services that were not planned: they stay as an earlier agent left them."""

    def due(self, now: float) -> set[ServiceKey]:  # noqa: ARG002
        """Return the Services to plan again at ``now``. Called every second."""
        return set()

    def tidy(self) -> None:
        """Make room in the follower's own maps. Called twice a minute."""

    def repair(self) -> int:
        """Repair what another program changed in the kernel; return how many entries differed."""
        return 0
