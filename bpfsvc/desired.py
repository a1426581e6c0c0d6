"""Every Kubernetes rule: one Service, its endpoints, this node -> the rows the kernel should hold.

A pure function, so that a rule can be read, and tested, without a kernel. It goes in three steps:
which endpoints count (:func:`_eligible`), which addresses and ports the Service answers on
(:func:`_frontends`), and what each class of clients meets there (:func:`_internal_policies`,
:func:`_external_policies`). All frontends are alike after the second step but for one question,
inside or outside: node ports, external IPs and load-balancer addresses follow the same rules.

The rules are kube-proxy's. C, L and H in the comments are its sets: all usable endpoints (after
topology), those on this node, and whether anything is usable anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from bpfsvc.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, endpoint_text, family
from bpfsvc.model import EndpointSlice, Port, Service, Traits
from bpfsvc.rows import Backend, Frontend, Policies, Policy, PortRows, ServicePort, ServiceRows


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What endpoints are compared with. ``zone`` is empty when the node names none."""

    name: str
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings that change rows.

    * ``detector_v4``, ``detector_v6``: whether clients can be told to be pods of this node.
    * ``masquerade_all``: masquerade everything that goes to a cluster IP.
    * ``allow_external_ips``: answer on ``spec.externalIPs``.
    """

    detector_v4: bool = True
    detector_v6: bool = True
    masquerade_all: bool = False
    allow_external_ips: bool = True

    def has_detector(self, of_family: int) -> bool:
        """Whether pods can be recognised in family 4 or 6."""
        return self.detector_v4 if of_family == 4 else self.detector_v6


def desired(
    service: Service | None,
    slices: Iterable[EndpointSlice],
    node: NodeContext,
    config: ServiceConfig,
) -> ServiceRows:
    """Give the rows of every service port; a Service that is gone or not ours has none.

    A family without a cluster IP gets nothing at all, not even a node port. A frontend named
    twice inside the Service belongs to the first: cluster IP, external IP, load balancer, node
    port, in the order of ``spec.ports``.
    """
    if service is None or not service.is_proxied:
        return {}
    slices = sorted((one for one in slices if one.is_proxied), key=_slice_order)
    taken: set[Frontend] = set()
    rows: ServiceRows = {}
    for cluster_ip in service.cluster_ips:
        for port in service.ports:
            key = ServicePort(
                service.namespace, service.name, port.name, port.protocol, family(cluster_ip)
            )
            if key not in rows:
                rows[key] = _port_rows(service, port, cluster_ip, slices, node, config, taken)
    return rows


# -- which endpoints count --


class Eligible(NamedTuple):
    """C and L, each sorted by its text. C is empty only if nothing is usable anywhere (not H)."""

    cluster: list[Backend]
    local: list[Backend]


def _eligible(endpoints: dict[Backend, Traits], node: NodeContext) -> Eligible:
    ready = [(backend, traits) for backend, traits in endpoints.items() if traits.ready]
    usable = ready or [(one, traits) for one, traits in endpoints.items() if traits.draining]
    near = _by_hints(ready, node) if ready else usable
    return Eligible(_sorted(near), _sorted(_local(endpoints, ready, node)))


def _slice_order(one: EndpointSlice) -> tuple[str, str]:
    """Slices may contradict each other; in order of name they do so alike on every node."""
    return one.name, one.kind


def _merged(slices: Iterable[EndpointSlice], port: Port, of_family: int) -> dict[Backend, Traits]:
    """Unite the slices. Of two records of one endpoint, the one that stays beats the leaver."""
    endpoints: dict[Backend, Traits] = {}
    for one in slices:
        if one.family != of_family:
            continue
        for name, protocol, number in one.ports:
            if name != port.name or protocol != port.protocol:
                continue
            for address, traits in one.endpoints():
                backend = Backend(address, number)
                if not traits.terminating or backend not in endpoints:
                    endpoints[backend] = traits
    return endpoints


Found = list[tuple[Backend, Traits]]


def _by_hints(ready: Found, node: NodeContext) -> Found:
    """Narrow by topology: this node, else this zone; all or nothing, on ready endpoints only."""
    if all(traits.nodes for _, traits in ready):
        same_node = [found for found in ready if node.name in found[1].nodes]
        if same_node:
            return same_node
    if node.zone and all(traits.zones for _, traits in ready):
        same_zone = [found for found in ready if node.zone in found[1].zones]
        if same_zone:
            return same_zone
    return ready


def _local(endpoints: dict[Backend, Traits], ready: Found, node: NodeContext) -> Found:
    """Keep those on this node; draining ones only when none here is ready, whoever else is."""
    here = [found for found in ready if found[1].node == node.name]
    return here or [
        (backend, traits)
        for backend, traits in endpoints.items()
        if traits.draining and traits.node == node.name
    ]


def _sorted(found: Found) -> list[Backend]:
    backends = [backend for backend, _ in found]
    if len(backends) > 1:
        backends.sort(key=lambda backend: endpoint_text(*backend))
    return backends


# -- where the Service answers --


def _frontends(
    service: Service, port: Port, cluster_ip: bytes, config: ServiceConfig
) -> Iterator[tuple[Frontend, bool]]:
    """Go over the frontends of a service port and whether each is an outside one."""
    of_family = family(cluster_ip)
    yield Frontend(cluster_ip, port.number, port.protocol), False
    outside = service.external_ips if config.allow_external_ips else ()
    for address in outside + service.load_balancer_ips:
        if family(address) == of_family:
            yield Frontend(address, port.number, port.protocol), True
    if port.node_port:
        wildcard = ANY_NODE_ADDRESS_V4 if of_family == 4 else ANY_NODE_ADDRESS_V6
        yield Frontend(wildcard, port.node_port, port.protocol), True


def _is_external(service: Service, port: Port, of_family: int) -> bool:
    """Whether outside clients are meant to reach it; a disallowed external IP counts as well."""
    addresses = service.external_ips + service.load_balancer_ips
    return port.node_port != 0 or any(family(address) == of_family for address in addresses)


def _is_external_local(service: Service) -> bool:
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
    port: Port,
    cluster_ip: bytes,
    slices: Iterable[EndpointSlice],
    node: NodeContext,
    config: ServiceConfig,
    taken: set[Frontend],
) -> PortRows:
    of_family = family(cluster_ip)
    outside = _is_external(service, port, of_family)
    outside_local = outside and _is_external_local(service)
    backends, slots = _lay_out(
        _eligible(_merged(slices, port, of_family), node),
        needs_cluster=outside or not service.internal_local,
        needs_local=outside_local or service.internal_local,
    )
    detector = config.has_detector(of_family)
    inner = _internal_policies(slots, service.internal_local, detector, config.masquerade_all)
    outer = _external_policies(slots, outside_local, detector) if outside else inner
    frontends: dict[Frontend, Policies] = {}
    for frontend, is_outside in _frontends(service, port, cluster_ip, config):
        if frontend not in taken:
            taken.add(frontend)
            frontends[frontend] = outer if is_outside else inner
    return PortRows(port.number, backends, frontends)


def _lay_out(
    eligible: Eligible, *, needs_cluster: bool, needs_local: bool
) -> tuple[tuple[Backend, ...], Slots]:
    """Give C the first slots and L the next, only where needed; equal sets share theirs."""
    cluster = eligible.cluster if needs_cluster else []
    local = eligible.local if needs_local else []
    shared = cluster == local
    backends = tuple(cluster) if shared else (*cluster, *local)
    slots = Slots(
        (0, len(cluster)), (0 if shared else len(cluster), len(local)), bool(eligible.cluster)
    )
    return backends, slots


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
