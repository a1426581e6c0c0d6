"""Which endpoints of a service port are used: C, those of the cluster, and L, those of this node.

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

_Found = list[tuple[Place, Traits]]


def in_order(slices: Iterable[EndpointSlice]) -> list[EndpointSlice]:
    """Return the slices that belong to a Service, sorted.

    Slices may contradict each other; in order of name they do so alike on every node.
    """
    found = [one for one in slices if one.is_proxied]
    if len(found) > 1:
        found.sort(key=lambda one: (one.name, one.kind))
    return found


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
    found = _backends(_serving(_sorted(endpoints)), node) if everywhere else []
    return PortEndpoints(key, endpoints, _eligible(endpoints, node), weights, found)


def _merge(
    slices: Iterable[EndpointSlice], key: ServicePort, of_slices: Mapping[SliceName, int]
) -> tuple[Endpoints, Mapping[Place, int]]:
    """Unite the slices. Of two records of one endpoint, one that stays beats one that leaves."""
    endpoints: Endpoints = {}
    weights: dict[Place, int] = {}
    for one in slices:
        if one.family != key.family:
            continue
        weight = of_slices.get((one.kind, one.name), USUAL) if of_slices else USUAL
        for name, protocol, number in one.ports:
            if name != key.port_name or protocol != key.protocol:
                continue
            for address, traits in one.endpoints():
                place = (address, number)
                if not traits.terminating or place not in endpoints:
                    endpoints[place] = traits
                    if of_slices:
                        weights[place] = weight
    return endpoints, weights or NO_WEIGHTS


def _serving(every: _Found) -> _Found:
    """Keep those that are ready; draining ones only when none is."""
    ready = [found for found in every if found[1].ready]
    return ready or [found for found in every if found[1].draining]


def _eligible(endpoints: Endpoints, node: NodeContext) -> Eligible:
    every = _sorted(endpoints)
    ready = [found for found in every if found[1].ready]
    near = _by_hints(ready, node) if ready else [found for found in every if found[1].draining]
    return Eligible(_backends(near, node), _backends(_local(every, ready, node), node))


def _by_hints(ready: _Found, node: NodeContext) -> _Found:
    """Narrow by topology: this node, else this zone; all or nothing, ready endpoints only."""
    if all(traits.nodes for _, traits in ready):
        same_node = [found for found in ready if node.name in found[1].nodes]
        if same_node:
            return same_node
    if node.zone and all(traits.zones for _, traits in ready):
        same_zone = [found for found in ready if node.zone in found[1].zones]
        if same_zone:
            return same_zone
    return ready


def _local(every: _Found, ready: _Found, node: NodeContext) -> _Found:
    """Keep those on this node; draining ones only when none here is ready."""
    here = [found for found in ready if found[1].node == node.name]
    return here or [found for found in every if found[1].draining and found[1].node == node.name]


def _sorted(endpoints: Endpoints) -> _Found:
    """Sort by the text of address and port."""
    found = list(endpoints.items())
    if len(found) > 1:
        found.sort(key=lambda each: endpoint_text(*each[0]))
    return found


def _backends(found: _Found, node: NodeContext) -> list[Backend]:
    """Make backends. One on this node is masqueraded when it is its own client."""
    name = node.name
    return [Backend(address, port, traits.node == name) for (address, port), traits in found]
