"""Which endpoints of a service port are used: C, in the cluster, and L, on this node.

The names are kube-proxy's, and so are the rules: readiness, draining as a last resort, topology.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bpfsvc.base.address import endpoint_text
from bpfsvc.model import EndpointSlice, Traits
from bpfsvc.services.entries import Backend, Place, ServicePort
from bpfsvc.services.port_endpoints import NO_WEIGHTS, Eligible, Endpoints, PortEndpoints
from bpfsvc.services.rules.context import NodeContext
from bpfsvc.services.scheduling.weights import NO_SLICES, USUAL, SliceName

_Endpoint = tuple[Place, Traits]


def in_order(slices: Iterable[EndpointSlice]) -> list[EndpointSlice]:
    """Return the slices that belong to a Service, sorted.

    Slices may contradict each other; in order of name they do so alike on every node.
    """
    proxied = [endpoint_slice for endpoint_slice in slices if endpoint_slice.is_proxied]
    if len(proxied) > 1:
        proxied.sort(key=lambda endpoint_slice: (endpoint_slice.name, endpoint_slice.kind))
    return proxied


def merge_port(
    slices: Iterable[EndpointSlice],
    key: ServicePort,
    node: NodeContext,
    of_slices: Mapping[SliceName, int] = NO_SLICES,
    *,
    everywhere: bool = False,
) -> PortEndpoints:
    """Return the endpoints of one service port; ``slices`` as :func:`in_order` returns them.

    ``of_slices``: the weights of the slices that have one. ``everywhere``: C without topology is
    wanted, too.
    """
    endpoints, weights = _merge(slices, key, of_slices)
    serving = _backends(_serving(_sorted(endpoints)), node) if everywhere else []
    return PortEndpoints(key, endpoints, _eligible(endpoints, node), weights, serving)


def _merge(
    slices: Iterable[EndpointSlice], key: ServicePort, of_slices: Mapping[SliceName, int]
) -> tuple[Endpoints, Mapping[Place, int]]:
    """Unite the slices. Of two records of an endpoint the better counts, else the later."""
    endpoints: Endpoints = {}
    weights: dict[Place, int] = {}
    for part in slices:
        if part.family != key.family:
            continue
        weight = of_slices.get((part.kind, part.name), USUAL) if of_slices else USUAL
        for name, protocol, number in part.ports:
            if name != key.port_name or protocol != key.protocol:
                continue
            for address, traits in part.endpoints():
                endpoint = (address, number)
                before = endpoints.get(endpoint)
                if before is None or _rank(traits) >= _rank(before):
                    endpoints[endpoint] = traits
                    if of_slices:
                        weights[endpoint] = weight
    return endpoints, weights or NO_WEIGHTS


def _rank(traits: Traits) -> tuple[bool, bool, bool]:
    """Return what a record of an endpoint is worth: ready counts, then staying, then serving."""
    return traits.ready, not traits.terminating, traits.serving


def _serving(endpoints: list[_Endpoint]) -> list[_Endpoint]:
    """Keep ready endpoints; draining ones only when none is ready."""
    ready = [endpoint for endpoint in endpoints if endpoint[1].ready]
    return ready or [endpoint for endpoint in endpoints if endpoint[1].draining]


def _eligible(endpoints: Endpoints, node: NodeContext) -> Eligible:
    ordered = _sorted(endpoints)
    serving = _serving(ordered)
    is_ready = bool(serving) and serving[0][1].ready
    near = _by_hints(serving, node) if is_ready else serving
    local = _serving([endpoint for endpoint in ordered if endpoint[1].node == node.name])
    return Eligible(_backends(near, node), _backends(local, node))


def _by_hints(ready: list[_Endpoint], node: NodeContext) -> list[_Endpoint]:
    """Narrow by topology: this node, else this zone; all or nothing, ready endpoints only."""
    if all(traits.nodes for _, traits in ready):
        same_node = [endpoint for endpoint in ready if node.name in endpoint[1].nodes]
        if same_node:
            return same_node
    if node.zone and all(traits.zones for _, traits in ready):
        same_zone = [endpoint for endpoint in ready if node.zone in endpoint[1].zones]
        if same_zone:
            return same_zone
    return ready


def _sorted(endpoints: Endpoints) -> list[_Endpoint]:
    """Sort by the text of address and port."""
    ordered = list(endpoints.items())
    if len(ordered) > 1:
        ordered.sort(key=lambda endpoint: endpoint_text(*endpoint[0]))
    return ordered


def _backends(endpoints: list[_Endpoint], node: NodeContext) -> list[Backend]:
    """Make backends. An endpoint on this node is masqueraded when it is its own client."""
    name = node.name
    return [Backend(address, port, traits.node == name) for (address, port), traits in endpoints]
