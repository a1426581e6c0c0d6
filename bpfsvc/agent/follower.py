"""What acts on Services whose entries are in the kernel: load balancers, clients, connections."""

from __future__ import annotations

from collections.abc import Mapping

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.rules.view import EndpointSummary

Summaries = Mapping[ServiceKey, EndpointSummary]
"""What followers need to know of each Service."""


class Follower:
    """Follows the sync of Services, in the agent's thread."""

    def restore(self) -> None:
        """Take over what an earlier agent left: the planner holds what was restored, no more."""

    def follow(self, summaries: Summaries) -> None:
        """Act on Services that were planned; what the planner did not refuse is in the kernel."""

    def report(self, summaries: Summaries) -> None:
        """Report Services that were not planned: they stay as an earlier agent left them."""

    def repair(self) -> int:
        """Repair what another program changed in the kernel; return how many entries differed."""
        return 0
