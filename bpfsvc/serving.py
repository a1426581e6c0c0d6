"""Which endpoints of UDP service ports serve, to notice those that cease to.

A UDP client has no connection that would break: it goes on sending to where it was first sent. So
when an endpoint stops serving, what leads to it must go at once. Ready or not, near or far does not
matter here, nor whether it was eligible: an endpoint that drains and still serves keeps its
clients, and a service port that nobody serves any more is left alone, as there is no better place
for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from socket import IPPROTO_UDP
from typing import NamedTuple

from bpfsvc.address import family
from bpfsvc.cluster import ServiceKey
from bpfsvc.eligibility import in_order, merged
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.rows import Place, ServicePort


class Change(NamedTuple):
    """A UDP service port that some ceased to serve: who still does, and who no longer."""

    port: ServicePort
    serving: frozenset[Place]
    gone: frozenset[Place]


class Serving:
    """Who served when it was last asked."""

    def __init__(self) -> None:
        self._known: dict[ServiceKey, dict[ServicePort, frozenset[Place]]] = {}

    def of(self, key: ServiceKey) -> Mapping[ServicePort, frozenset[Place]]:
        """Give who served each UDP service port when it was last asked who does, or last served."""
        return self._known.get(key, {})

    def changes(
        self, key: ServiceKey, service: Service | None, slices: Iterable[EndpointSlice]
    ) -> list[Change]:
        """Take the endpoints of one Service, and give the service ports that lost some.

        A service port that somebody serves for the first time is given as well, without those that
        are gone: what a former agent or a former Service left may lead anywhere.
        """
        now = _serving(service, slices)
        before = self._known.pop(key, {})
        if now:
            # Where nobody serves, those that did are remembered until somebody does.
            self._known[key] = {
                port: places or before.get(port, places) for port, places in now.items()
            }
        return [
            Change(port, places, before.get(port, places) - places)
            for port, places in now.items()
            if places and (not before.get(port) or before[port] - places)
        ]


def _serving(
    service: Service | None, slices: Iterable[EndpointSlice]
) -> dict[ServicePort, frozenset[Place]]:
    if service is None or not service.is_proxied:
        return {}
    if all(port.protocol != IPPROTO_UDP for port in service.ports):
        return {}
    known = in_order(slices)
    return {
        ServicePort(
            service.namespace, service.name, port.name, port.protocol, family(cluster_ip)
        ): frozenset(
            place
            for place, traits in merged(known, port, family(cluster_ip)).items()
            if traits.serving
        )
        for cluster_ip in service.cluster_ips
        for port in service.ports
        if port.protocol == IPPROTO_UDP
    }
