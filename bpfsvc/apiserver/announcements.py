"""What the agent announces, as Events in kube-proxy's words."""

from __future__ import annotations

from bpfsvc.announcer import Announcer
from bpfsvc.apiserver.connection import Connection
from bpfsvc.apiserver.events import (
    FAILED_HEALTHZ,
    FAILED_METRICS,
    FAILED_SERVICE_HEALTH,
    LISTEN,
    START,
    STARTING,
    Events,
    node,
    service,
)

_FAILED = {"healthz": FAILED_HEALTHZ, "metrics": FAILED_METRICS}


class Announcements(Announcer):
    """Posts Events about a Node and its Services."""

    def __init__(self, connection: Connection, node_name: str) -> None:
        self._events = Events(connection, node_name)
        self._node = node(node_name)
        self._events.start()

    def started(self) -> None:
        """Post ``Starting``."""
        self._events.post(STARTING, START, "", regarding=self._node)

    def server_failed(self, name: str, reason: str) -> None:
        """Post that kube-proxy would not have started either."""
        self._events.post(_FAILED[name], START, reason, regarding=self._node, kind="Warning")

    def check_failed(self, namespace: str, name: str, reason: str) -> None:
        """Post it on the Service."""
        about = service(namespace, name)
        self._events.post(FAILED_SERVICE_HEALTH, LISTEN, reason, regarding=about, kind="Warning")

    def stop(self) -> None:
        """End the thread that posts."""
        self._events.stop()
