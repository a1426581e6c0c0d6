"""Which endpoints of UDP service ports serve, to notice those that stop serving.

A UDP client has no connection that would break: it goes on sending to the endpoint that it was
first sent to. So when an endpoint stops serving, the flows and sockets that lead to it must be
removed at once. Whether it was ready, near or eligible does not matter here: an endpoint that
drains and still serves keeps its clients, and the clients of a service port without any serving
endpoint are left alone, as there is no better endpoint for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place, ServicePort


class UdpChange(NamedTuple):
    """A UDP service port that lost endpoints: those that serve, and those that no longer do."""

    port: ServicePort
    serving: frozenset[Place]
    gone: frozenset[Place]


class UdpEndpoints:
    """The endpoints that served each UDP service port at the last update."""

    def __init__(self) -> None:
        self._known: dict[ServiceKey, dict[ServicePort, frozenset[Place]]] = {}

    def of(self, key: ServiceKey) -> Mapping[ServicePort, frozenset[Place]]:
        """Return the endpoints of each UDP service port that serve, or that were the last to."""
        return self._known.get(key, {})

    def update(
        self, key: ServiceKey, now: Mapping[ServicePort, frozenset[Place]]
    ) -> list[UdpChange]:
        """Note the serving endpoints of one Service; return the service ports that lost some.

        A service port that has a serving endpoint for the first time is returned as well, with
        nothing gone: what a former agent or a former Service left may lead anywhere.
        """
        before = self._known.pop(key, {})
        if now:
            # Where none serves, the last that did are remembered until another one does.
            self._known[key] = {
                port: places or before.get(port, places) for port, places in now.items()
            }
        return [
            UdpChange(port, places, before.get(port, places) - places)
            for port, places in now.items()
            if places and (not before.get(port) or before[port] - places)
        ]
