"""Every Kubernetes rule: one Service, its endpoints, this node -> the rows the kernel should hold.

A pure function, so that a rule can be read, and tested, without a kernel. It goes in three steps:
which endpoints count (:mod:`bpfsvc.eligibility`), which addresses and ports the Service answers on
(:func:`_frontends`), and what each class of clients meets there (:func:`_internal_policies`,
:func:`_external_policies`). All frontends are alike after the second step but for two questions:
inside or outside, as node ports, external IPs and load-balancer addresses follow the same rules;
and whether it is for clients of certain ranges only (:mod:`bpfsvc.clientranges`).

The rules are kube-proxy's. C, L and H in the comments are its sets: all usable endpoints (after
topology), those on this node, and whether anything is usable anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from bpfsvc.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family
from bpfsvc.clientranges import client_ranges
from bpfsvc.eligibility import Eligible, eligible, in_order, merged
from bpfsvc.model import EndpointSlice, Port, Service
from bpfsvc.rows import Backend, Frontend, Policies, Policy, PortRows, ServicePort, ServiceRows
from bpfsvc.surroundings import NodeContext, ServiceConfig

__all__ = ["NodeContext", "ServiceConfig", "answers_at", "desired"]


def desired(
    service: Service | None,
    slices: Iterable[EndpointSlice],
    node: NodeContext,
    config: ServiceConfig,
) -> ServiceRows:
    """Give the rows of every service port; a Service that is gone or not ours has none.

    A family without a cluster IP gets nothing at all, not even a node port. A frontend named
    twice inside the Service belongs to the first: cluster IP, external IP, load balancer, node
    port, in the order of ``spec.ports``. The first service port of a cluster IP also guards what
    no service port takes of that address.
    """
    if service is None or not service.is_proxied:
        return {}
    slices = in_order(slices)
    return {
        key: _port_rows(service, key.family, port, slices, node, config, entrances)
        for key, (port, entrances) in _entrances(service, config).items()
    }


def answers_at(service: Service | None, config: ServiceConfig) -> tuple[Frontend, ...]:
    """Give the frontends of :func:`desired` alone, which are the same whoever serves."""
    if service is None or not service.is_proxied:
        return ()
    return tuple(
        entrance.frontend
        for _, entrances in _entrances(service, config).values()
        for entrance in entrances
    )


# -- where the Service answers --


class _Entrance(NamedTuple):
    """A frontend, and which rules hold there. A guard refuses what no service port takes."""

    frontend: Frontend
    outside: bool
    restricted: bool
    guard: bool = False


def _entrances(
    service: Service, config: ServiceConfig
) -> dict[ServicePort, tuple[Port, list[_Entrance]]]:
    """Give each service port and its frontends; what was named before is left out."""
    taken: set[Frontend] = set()
    found: dict[ServicePort, tuple[Port, list[_Entrance]]] = {}
    for cluster_ip in service.cluster_ips:
        for port in service.ports:
            key = ServicePort(
                service.namespace, service.name, port.name, port.protocol, family(cluster_ip)
            )
            if key in found:
                continue
            own: list[_Entrance] = []
            for entrance in _frontends(service, port, cluster_ip, config):
                if entrance.frontend not in taken:
                    taken.add(entrance.frontend)
                    own.append(entrance)
            found[key] = port, own
    return found


def _frontends(
    service: Service, port: Port, cluster_ip: bytes, config: ServiceConfig
) -> Iterator[_Entrance]:
    """Go over the frontends of a service port.

    An address of a load balancer is restricted whatever else it may be.
    """
    of_family = family(cluster_ip)
    vips = service.load_balancer_ips
    yield _Entrance(Frontend(cluster_ip, port.number, port.protocol), False, cluster_ip in vips)
    for address in (service.external_ips if config.allow_external_ips else ()) + vips:
        if family(address) == of_family:
            restricted = config.source_ranges_for_all or address in vips
            yield _Entrance(Frontend(address, port.number, port.protocol), True, restricted)
    if port.node_port:
        wildcard = ANY_NODE_ADDRESS_V4 if of_family == 4 else ANY_NODE_ADDRESS_V6
        everywhere = Frontend(wildcard, port.node_port, port.protocol)
        yield _Entrance(everywhere, True, config.source_ranges_for_all)
    yield _Entrance(Frontend.rest(cluster_ip), False, False, guard=True)


def _is_external(service: Service, port: Port, of_family: int) -> bool:
    """Whether outside clients are meant to reach it; a disallowed external IP counts as well."""
    addresses = service.external_ips + service.load_balancer_ips
    return port.node_port != 0 or any(family(address) == of_family for address in addresses)


def is_external_local(service: Service) -> bool:
    """``externalTrafficPolicy: Local`` only counts where the API gives it a meaning."""
    return service.external_local and (
        service.type in ("NodePort", "LoadBalancer")
        or (service.type == "ClusterIP" and bool(service.external_ips))
    )


# -- what clients meet there --


class Slots(NamedTuple):
    """Ranges of backend slots, (first, size): C, L, and whether anything is usable (H)."""

    cluster: tuple[int, int]
    local: tuple[int, int]
    anything: bool


def _port_rows(
    service: Service,
    of_family: int,
    port: Port,
    slices: Iterable[EndpointSlice],
    node: NodeContext,
    config: ServiceConfig,
    entrances: Iterable[_Entrance],
) -> PortRows:
    outside = _is_external(service, port, of_family)
    outside_local = outside and is_external_local(service)
    backends, slots = _lay_out(
        eligible(merged(slices, port, of_family), node),
        needs_cluster=outside or not service.internal_local,
        needs_local=outside_local or service.internal_local,
    )
    detector = config.has_detector(of_family)
    inner = _internal_policies(slots, service.internal_local, detector, config.masquerade_all)
    outer = _external_policies(slots, outside_local, detector) if outside else inner
    ranges = client_ranges(service, of_family, node)
    frontends: dict[Frontend, Policies] = {}
    for entrance in entrances:
        if entrance.guard:
            frontends[entrance.frontend] = GUARD
            continue
        policies = outer if entrance.outside else inner
        restricted = entrance.restricted and bool(ranges)
        if restricted or service.affinity_seconds:
            policies = _special(policies, service.affinity_seconds, restricted)
        frontends[entrance.frontend] = policies
    in_use = any(policies.restricted for policies in frontends.values())
    return PortRows(port.number, backends, frontends, ranges if in_use else ())


def _lay_out(
    found: Eligible, *, needs_cluster: bool, needs_local: bool
) -> tuple[tuple[Backend, ...], Slots]:
    """Give C the first slots and L the next, only where needed; equal sets share theirs."""
    cluster = found.cluster if needs_cluster else []
    local = found.local if needs_local else []
    shared = cluster == local
    backends = tuple(cluster) if shared else (*cluster, *local)
    slots = Slots(
        (0, len(cluster)), (0 if shared else len(cluster), len(local)), bool(found.cluster)
    )
    return backends, slots


_REFUSAL = Policy(0, 0, False, True)
GUARD = Policies(_REFUSAL, _REFUSAL, _REFUSAL)
"""What everyone meets where a live cluster IP has no service port."""


@lru_cache(maxsize=1024)
def _special(policies: Policies, affinity_seconds: int, restricted: bool) -> Policies:
    return policies._replace(affinity_seconds=affinity_seconds, restricted=restricted)


@lru_cache(maxsize=1024)
def _internal_policies(
    slots: Slots, local_only: bool, detector: bool, masquerade_all: bool
) -> Policies:
    """Cluster IP: strangers are masqueraded if they can be told from pods of this node."""
    where = slots.local if local_only else slots.cluster
    foreign = detector or masquerade_all
    return Policies(
        pod=_policy(slots, where, masquerade=masquerade_all),
        node=_policy(slots, where, masquerade=foreign),
        other=_policy(slots, where, masquerade=foreign),
    )


@lru_cache(maxsize=1024)
def _external_policies(slots: Slots, local_only: bool, detector: bool) -> Policies:
    """Outside frontends: ``Local`` keeps the client's address and binds only true outsiders.

    Pods and processes of this node may go anywhere even then: their replies come back here.
    """
    if not local_only:
        everyone = _policy(slots, slots.cluster, masquerade=True)
        return Policies(everyone, everyone, everyone)
    outsider = _policy(slots, slots.local, masquerade=False)
    return Policies(
        pod=_policy(slots, slots.cluster, masquerade=False) if detector else outsider,
        node=_policy(slots, slots.cluster, masquerade=True),
        other=outsider,
    )


def _policy(slots: Slots, where: tuple[int, int], *, masquerade: bool) -> Policy:
    """Pick from a range. An empty one refuses if nobody is home anywhere, else stays silent."""
    first, size = where
    if size:
        return Policy(first, size, masquerade, False)
    return Policy(0, 0, False, reject=not slots.anything)
