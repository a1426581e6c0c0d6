"""What load balancers are told: how many ready endpoints of a Service are on this node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from bpfsvc.address import family
from bpfsvc.eligibility import in_order, merged
from bpfsvc.model import EndpointSlice, Service


class Check(NamedTuple):
    """``healthCheckNodePort`` of a Service in one family, and the count that it answers with."""

    port: int
    local_endpoints: int


_NONE: Mapping[int, Check] = {}
"""What nearly all Services have."""


def checks(
    service: Service | None, slices: Iterable[EndpointSlice], node_name: str
) -> Mapping[int, Check]:
    """Give the check of each family that the Service has a cluster IP of.

    Only load balancers that keep to local endpoints have one. Draining endpoints do not count,
    though they serve: a balancer is to stop sending before they are gone.
    """
    if service is None or not service.is_proxied or not service.health_check_node_port:
        return _NONE
    if service.type != "LoadBalancer" or not service.external_local:
        return _NONE
    known = in_order(slices)
    found = {}
    for of_family in map(family, service.cluster_ips):
        ready = {
            address
            for port in service.ports
            for (address, _), traits in merged(known, port, of_family).items()
            if traits.ready and traits.node == node_name
        }
        found[of_family] = Check(service.health_check_node_port, len(ready))
    return found
