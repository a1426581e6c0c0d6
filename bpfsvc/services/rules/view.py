"""One pass over a Service's slices per change, and all that follows from them.

The slices are ordered and merged once per service port; the entries of the kernel, the health
check, the count of service ports without local endpoints and the endpoints that serve UDP are all
taken from that one result. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from socket import IPPROTO_TCP, IPPROTO_UDP
from typing import NamedTuple

from bpfsvc.base.address import family
from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.entries import Place, ServiceEntries, ServicePort
from bpfsvc.services.port_endpoints import PortEndpoints
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.desired import (
    ServicePorts,
    endpoint_sets,
    is_external_local,
    port_entries,
    service_ports,
)
from bpfsvc.services.rules.endpoints import in_order, merge_port
from bpfsvc.services.scheduling.annotations import USUAL_SCHEDULING, Scheduling
from bpfsvc.services.scheduling.removal import Members, OnRemoval, Removal

PortCounts = Mapping[tuple[str, int], int]
"""Traffic policy (``internal``, ``external``) and family -> number of service ports."""


class HealthCheck(NamedTuple):
    """``healthCheckNodePort`` of a Service in one family, and the count that it answers with."""

    port: int
    local_endpoints: int


class EndpointSummary(NamedTuple):
    """What others than the kernel's Service maps need to know about a Service's endpoints.

    * ``health_checks``: by family, of a load balancer that keeps to local endpoints.
    * ``without_local``: service ports that keep to local endpoints and have none, by policy and
      family, though others exist.
    * ``udp_serving``: the endpoints of each UDP service port that serve, ready or not.
    * ``members``: all endpoints, if connections to those that leave are not kept.
    * ``watched``: sets of endpoints that clients share, if those that fail are left out.
    """

    health_checks: Mapping[int, HealthCheck]
    without_local: PortCounts
    udp_serving: Mapping[ServicePort, frozenset[Place]]
    members: Members | None = None
    watched: frozenset[frozenset[Place]] | None = None


class ServiceView(NamedTuple):
    """What this node makes of one Service: entries of the kernel's maps, and the summary."""

    entries: ServiceEntries
    summary: EndpointSummary


NOTHING = EndpointSummary({}, {}, {})
"""The summary that nearly all Services have; shared, for ten thousand may be held at once."""


def evaluate(
    service: Service | None,
    slices: Iterable[EndpointSlice],
    node: NodeContext,
    config: ServiceConfig,
    scheduling: Scheduling = USUAL_SCHEDULING,
    ports: ServicePorts | None = None,
) -> ServiceView:
    """Return the view of a Service; nothing for one that is deleted or another proxy's.

    ``ports``: what :func:`service_ports` returns for the Service, if the caller has it.
    """
    if ports is None:
        ports = service_ports(service, config)
    if service is None or not ports:
        return ServiceView({}, NOTHING)
    slices = in_order(slices)
    entries: ServiceEntries = {}
    endpoints_of_ports: list[PortEndpoints] = []
    sets: set[frozenset[Place]] = set()
    for port in ports:
        endpoints = merge_port(
            slices,
            port.key,
            node,
            scheduling.of_slices,
            everywhere=scheduling.zone_overload > 0,
        )
        endpoints_of_ports.append(endpoints)
        entries[port.key] = port_entries(service, port, endpoints, node, config, scheduling)
        if scheduling.quarantine and port.key.protocol == IPPROTO_TCP:
            sets |= endpoint_sets(service, port.port, endpoints, scheduling)
    summary = _summary(service, endpoints_of_ports, node.name, scheduling.removal)
    if scheduling.quarantine:
        summary = summary._replace(watched=frozenset(sets))
    return ServiceView(entries, summary)


def _summary(
    service: Service, ports: list[PortEndpoints], node_name: str, removal: Removal
) -> EndpointSummary:
    health_checks = _health_checks(service, ports, node_name)
    without_local = _without_local(service, ports)
    udp_serving = {
        port.key: frozenset(endpoint for endpoint, traits in port.all.items() if traits.serving)
        for port in ports
        if port.key.protocol == IPPROTO_UDP
    }
    members = _members(ports, removal)
    if health_checks or without_local or udp_serving or members:
        return EndpointSummary(health_checks, without_local, udp_serving, members)
    return NOTHING


def _members(ports: list[PortEndpoints], removal: Removal) -> Members | None:
    if removal.kind == OnRemoval.KEEP:
        return None
    endpoints = {
        port.key: frozenset(port.all) for port in ports if port.key.protocol == IPPROTO_TCP
    }
    return Members(removal.seconds, endpoints)


def _health_checks(
    service: Service, ports: list[PortEndpoints], node_name: str
) -> Mapping[int, HealthCheck]:
    """Return the check of each family that the Service has a cluster IP of.

    Only load balancers that keep to local endpoints have one. Draining endpoints do not count,
    though they serve: a balancer is to stop sending before they are gone.
    """
    if not service.health_check_node_port:
        return {}
    if service.type != "LoadBalancer" or not service.external_local:
        return {}
    ready: dict[int, set[bytes]] = {
        of_family: set() for of_family in map(family, service.cluster_ips)
    }
    for port in ports:
        ready[port.key.family].update(
            address
            for (address, _), traits in port.all.items()
            if traits.ready and traits.node == node_name
        )
    return {
        of_family: HealthCheck(service.health_check_node_port, len(addresses))
        for of_family, addresses in ready.items()
    }


def _without_local(service: Service, ports: list[PortEndpoints]) -> PortCounts:
    """Count the service ports that have no endpoint on this node, and need one.

    Their traffic is dropped, which is correct and yet what people look for when packets do not
    arrive. The rule and its scope are kube-proxy's: a load balancer without an address yet counts
    as well.
    """
    policies = []
    if service.internal_local:
        policies.append("internal")
    if is_external_local(service):
        policies.append("external")
    if not policies:
        return {}
    return Counter(
        (policy, port.key.family)
        for port in ports
        if port.eligible.cluster and not port.eligible.local
        for policy in policies
    )
