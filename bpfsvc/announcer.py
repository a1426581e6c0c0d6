"""What the agent announces to the cluster, in its own words.

This is also whom it speaks to where there is no API server: then nobody hears it. None of these
waits for anything.
"""

from __future__ import annotations


class Announcer:
    """Is told what people outside this node should know, and here tells nobody."""

    def started(self) -> None:
        """Say that the agent has been started."""

    def server_failed(self, name: str, reason: str) -> None:
        """Say that a server (``healthz``, ``metrics``) cannot be had, and the agent ends."""

    def check_failed(self, namespace: str, name: str, reason: str) -> None:
        """Say that the health check of a Service cannot be served."""

    def stop(self) -> None:
        """Say no more; what waits is still told, if that takes no time."""
