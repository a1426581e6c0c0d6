"""Where a Service answers and what its clients meet there: the entries of the kernel's maps.

Pure functions, so that a rule can be read, and tested, without a kernel. :func:`service_ports`
returns the addresses and ports that a Service answers on, :func:`port_entries` what each class of
clients meets there (:func:`_internal_policies`, :func:`_external_policies`). All frontends follow
the same rules but for two questions: whether it is for clients inside or outside of the cluster,
as node ports, external IPs and load-balancer addresses are alike; and whether it is restricted to
clients of certain ranges (:mod:`bpfsvc.services.rules.source_ranges`).

The rules are kube-proxy's. C, L and H in the comments are its sets: all usable endpoints (after
topology), those on this node, and whether anything is usable anywhere
(:mod:`bpfsvc.services.rules.endpoints`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family
from bpfsvc.model import Port, Service
from bpfsvc.services.entries import (
    Frontend,
    Place,
    Policies,
    Policy,
    PortEntries,
    ServicePort,
    range_entries,
)
from bpfsvc.services.port_endpoints import PortEndpoints, Uses
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.refused_addresses import refusal
from bpfsvc.services.rules.source_ranges import source_ranges
from bpfsvc.services.scheduling.annotations import USUAL_SCHEDULING, Scheduling
from bpfsvc.services.scheduling.placement import Slots, place, usable_sets

# -- where the Service answers --


class PortFrontends(NamedTuple):
    """A service port and its frontends."""

    key: ServicePort
    port: Port
    frontends: tuple[Frontend, ...]


ServicePorts = tuple[PortFrontends, ...]


def service_ports(service: Service | None, config: ServiceConfig) -> ServicePorts:
    """Return the service ports of a Service with their frontends; endpoints have no part in them.

    A Service that is deleted or another proxy's has none, nor has a family without a cluster IP.
    A frontend that is named twice inside the Service belongs to the first: cluster IP, external
    IP, load balancer, node port, in the order of ``spec.ports``. The first service port of a
    cluster IP also has the guard of that address: a frontend that rejects every port of the
    address that is no service port.
    """
    if service is None or not service.is_proxied:
        return ()
    taken: set[Frontend] = set()
    ports: dict[ServicePort, PortFrontends] = {}
    for cluster_ip in service.cluster_ips:
        for port in service.ports:
            key = ServicePort(
                service.namespace, service.name, port.name, port.protocol, family(cluster_ip)
            )
            if key not in ports:
                candidates = dict.fromkeys(_frontends(service, port, cluster_ip, config))
                own = tuple([frontend for frontend in candidates if frontend not in taken])
                taken.update(own)
                ports[key] = PortFrontends(key, port, own)
    return tuple(ports.values())


def frontends(ports: ServicePorts) -> tuple[Frontend, ...]:
    """Return the frontends of all service ports of a Service."""
    return tuple([frontend for port in ports for frontend in port.frontends])


def _frontends(
    service: Service, port: Port, cluster_ip: bytes, config: ServiceConfig
) -> list[Frontend]:
    """Return the frontends that a service port names."""
    of_family = family(cluster_ip)
    external_ips = service.external_ips if config.allow_external_ips else ()
    named = [Frontend(cluster_ip, port.number, port.protocol)]
    for address in external_ips + service.load_balancer_ips:
        if family(address) == of_family and not refusal(address):
            named.append(Frontend(address, port.number, port.protocol))
    if port.node_port:
        wildcard = ANY_NODE_ADDRESS_V4 if of_family == 4 else ANY_NODE_ADDRESS_V6
        named.append(Frontend(wildcard, port.node_port, port.protocol))
    named.append(Frontend.rest(cluster_ip))
    return named


def _is_node_port(frontend: Frontend) -> bool:
    return frontend.address in (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6)


def _is_restricted(frontend: Frontend, service: Service, config: ServiceConfig) -> bool:
    """True if the source ranges of the Service hold at a frontend.

    They hold at an address of the load balancer, even if it is the cluster IP or an external IP
    too.
    """
    if frontend.address in service.load_balancer_ips and not _is_node_port(frontend):
        return True
    return config.source_ranges_for_all and frontend.address not in service.cluster_ips


def _is_external(service: Service, port: Port, of_family: int) -> bool:
    """True if clients outside may reach it; an external IP that is not allowed counts as well."""
    addresses = service.external_ips + service.load_balancer_ips
    return port.node_port != 0 or any(family(address) == of_family for address in addresses)


def is_external_local(service: Service) -> bool:
    """True if ``externalTrafficPolicy: Local`` is set and the API gives it a meaning."""
    return service.external_local and (
        service.type in ("NodePort", "LoadBalancer")
        or (service.type == "ClusterIP" and bool(service.external_ips))
    )


# -- what clients meet there --


def port_entries(
    service: Service,
    port_frontends: PortFrontends,
    endpoints: PortEndpoints,
    node: NodeContext,
    config: ServiceConfig,
    scheduling: Scheduling = USUAL_SCHEDULING,
) -> PortEntries:
    """Return the entries of one service port."""
    port, of_family = port_frontends.port, port_frontends.key.family
    outside = _is_external(service, port, of_family)
    outside_local = outside and is_external_local(service)
    uses = _uses(service, port, of_family)
    backends, slots, extra = place(endpoints, uses, scheduling, config.scheduler)
    detector = config.has_detector(of_family)
    inner = _internal_policies(slots, service.internal_local, detector, config.masquerade_all)
    outer = _external_policies(slots, outside_local, detector) if outside else inner
    ranges = source_ranges(service, of_family, node)
    policies_of: dict[Frontend, Policies] = {}
    for frontend in port_frontends.frontends:
        if frontend.is_rest:
            policies_of[frontend] = GUARD
            continue
        policies = inner if frontend.address in service.cluster_ips else outer
        restricted = bool(ranges) and _is_restricted(frontend, service, config)
        echo = config.vip_echo and _answers_echo(frontend, policies)
        special = (service.affinity_seconds, restricted, echo)
        if any(special):
            policies = _special(policies, *special)
        policies_of[frontend] = policies
    if ranges and any(policies.restricted for policies in policies_of.values()):
        extra = {**range_entries(ranges), **extra}
    return PortEntries(port.number, backends, policies_of, extra)


def endpoint_sets(
    service: Service, port: Port, endpoints: PortEndpoints, scheduling: Scheduling
) -> set[frozenset[Place]]:
    """Return the sets of endpoints that some clients of a service port share."""
    return usable_sets(endpoints, _uses(service, port, endpoints.key.family), scheduling)


def _uses(service: Service, port: Port, of_family: int) -> Uses:
    outside = _is_external(service, port, of_family)
    return Uses(
        cluster=outside or not service.internal_local,
        local=service.internal_local or (outside and is_external_local(service)),
    )


_REJECT = Policy(0, 0, False, True)
GUARD = Policies(_REJECT, _REJECT, _REJECT)
"""What every client meets at a port of a cluster IP that is no service port."""


@lru_cache(maxsize=1024)
def _special(
    policies: Policies,
    affinity_seconds: int,
    restricted: bool,
    echo: bool,
) -> Policies:
    return policies._replace(
        affinity_seconds=affinity_seconds,
        restricted=restricted,
        echo=echo,
    )


def _answers_echo(frontend: Frontend, policies: Policies) -> bool:
    """True if a ping to the address is answered: some clients get an endpoint there.

    The node's own addresses, where node ports are, are left to the kernel.
    """
    if _is_node_port(frontend):
        return False
    return any(policy.size for policy in policies.by_class)


@lru_cache(maxsize=1024)
def _internal_policies(
    slots: Slots, local_only: bool, detector: bool, masquerade_all: bool
) -> Policies:
    """Cluster IP: clients that are no pods of this node are masqueraded, if pods are known."""
    foreign = detector or masquerade_all
    return slots.choice._replace(
        pod=_policy(slots, local_only, masquerade=masquerade_all),
        node=_policy(slots, local_only, masquerade=foreign),
        other=_policy(slots, local_only, masquerade=foreign),
    )


@lru_cache(maxsize=1024)
def _external_policies(slots: Slots, local_only: bool, detector: bool) -> Policies:
    """Outside frontends: ``Local`` keeps the client's address, and only binds external clients.

    Pods and processes of this node reach every endpoint even then: their replies come back here.
    """
    if not local_only:
        everyone = _policy(slots, False, masquerade=True)
        return slots.choice._replace(pod=everyone, node=everyone, other=everyone)
    external = _policy(slots, True, masquerade=False)
    return slots.choice._replace(
        pod=_policy(slots, False, masquerade=False) if detector else external,
        node=_policy(slots, False, masquerade=True),
        other=external,
    )


def _policy(slots: Slots, local_only: bool, *, masquerade: bool) -> Policy:
    """Choose from a range. An empty one rejects if nothing is usable anywhere, else drops.

    Endpoints on this node alone are a policy, from which connections never spill over.
    """
    first, size, table, refuses, trials = slots.local if local_only else slots.cluster
    if size:
        spills = slots.spills and not local_only
        return Policy(first, size, masquerade, refuses, table, trials, spills)
    return Policy(0, 0, False, reject=refuses or not slots.anything)
