"""Why: the rules behind an answer, and each endpoint that is not eligible, with the reason.

What happens is decided by the programs on the rows; this tells, from the objects, how the rows came
about. It never decides anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bpfsvc.address import endpoint_text, unpack
from bpfsvc.clientranges import client_ranges
from bpfsvc.cluster import Known
from bpfsvc.desired import is_external_local
from bpfsvc.eligibility import Endpoints, eligible, in_order, merged
from bpfsvc.explain.question import Question
from bpfsvc.model import Port, Service, Traits
from bpfsvc.networks import contains, network_text
from bpfsvc.rows import Frontend, Policies, ServicePort
from bpfsvc.surroundings import NodeContext


class Circumstances(NamedTuple):
    """What an account needs beside the objects: the row that matched, and whose client asks.

    ``client`` is one of ``pod``, ``node`` and ``other``.
    """

    question: Question
    frontend: Frontend
    client: str
    policies: Policies
    node: NodeContext


_CLIENTS = {
    "pod": "a pod of this node",
    "node": "this node itself",
    "other": "neither a pod of this node nor the node itself",
}


def account(owner: ServicePort, known: Known, about: Circumstances) -> Iterator[str]:
    """Give the reasons, in the order in which the rules are applied."""
    service = known.service
    port = _port(service, owner)
    if service is None or port is None:
        yield "the Service is gone from the objects, but still in the kernel"
        return
    kind = _kind(service, about.frontend)
    yield f"the frontend is {kind} of {owner.namespace}/{owner.name}, port {_port_text(port)}"
    yield f"the client is {_CLIENTS[about.client]}"
    if about.policies.restricted:
        ranges = client_ranges(service, owner.family, about.node)
        texts = ", ".join(map(network_text, ranges))
        source = about.question.source
        if not any(contains(one, source) for one in ranges):
            yield f"loadBalancerSourceRanges ({texts}) do not contain {unpack(source)}: dropped"
            return
        yield f"loadBalancerSourceRanges ({texts}) let {unpack(source)} in"
    outside = kind != "the cluster IP"
    yield from _policy(service, about, outside=outside)
    endpoints = merged(in_order(known.slices), port, owner.family)
    yield from _eligibility(endpoints, service, about, outside=outside)
    if about.policies.affinity_seconds:
        yield (
            "sessionAffinity ClientIP: a client that comes again within"
            f" {about.policies.affinity_seconds} s is given the backend of last time, if eligible"
        )


def _port(service: Service | None, owner: ServicePort) -> Port | None:
    ports = service.ports if service else ()
    return next(
        (one for one in ports if (one.name, one.protocol) == (owner.port_name, owner.protocol)),
        None,
    )


def _port_text(port: Port) -> str:
    return f"{port.name} ({port.number})" if port.name else str(port.number)


def _kind(service: Service, frontend: Frontend) -> str:
    if frontend.address in service.cluster_ips:
        return "the cluster IP"
    if frontend.address in service.load_balancer_ips:
        return "a load balancer's address"
    if frontend.address in service.external_ips:
        return "an external IP"
    return "the node port"


def _policy(service: Service, about: Circumstances, *, outside: bool) -> Iterator[str]:
    policy = getattr(about.policies, about.client)
    if not outside:
        local = service.internal_local
        yield f"internalTrafficPolicy {'Local' if local else 'Cluster'}" + (
            ": only endpoints on this node" if local else ""
        )
    elif not is_external_local(service):
        yield "externalTrafficPolicy Cluster: every endpoint, and masqueraded"
    elif about.client == "pod":
        yield (
            "externalTrafficPolicy Local, but the client is a pod of this node:"
            " every endpoint, not masqueraded (short-circuit)"
        )
    elif about.client == "node":
        yield (
            "externalTrafficPolicy Local, but the client is this node:"
            " every endpoint, and masqueraded (short-circuit)"
        )
    else:
        yield "externalTrafficPolicy Local: only endpoints on this node, client address kept"
    if policy.size and not outside:
        yield (
            "masqueraded: the client is no pod of this node"
            if (policy.masquerade and about.client != "pod")
            else "masqueraded: everything that goes to a cluster IP is"
            if (policy.masquerade)
            else "not masqueraded"
        )
    if not policy.size:
        yield (
            "no endpoint is usable anywhere: rejected"
            if policy.reject
            else "no endpoint on this node is usable, but others are: dropped"
        )


def _eligibility(
    endpoints: Endpoints, service: Service, about: Circumstances, *, outside: bool
) -> Iterator[str]:
    found = eligible(endpoints, about.node)
    local_only = (
        is_external_local(service) and about.client == "other"
        if outside
        else service.internal_local
    )
    chosen = {backend.place for backend in (found.local if local_only else found.cluster)}
    if not endpoints:
        yield "there are no endpoints"
    if any(traits.draining and place in chosen for place, traits in endpoints.items()):
        yield "no endpoint is ready: those that are draining are the last resort"
    for place, traits in sorted(endpoints.items(), key=lambda pair: endpoint_text(*pair[0])):
        if place not in chosen:
            yield f"not {endpoint_text(*place)}: {_why_not(traits, about.node, local_only)}"


def _why_not(traits: Traits, node: NodeContext, local_only: bool) -> str:
    if not traits.ready:
        if traits.draining:
            return "it is draining, and others are ready"
        return "it is terminating" if traits.terminating else "it is not ready"
    if local_only and traits.node != node.name:
        return f"it is on {traits.node or 'a node that is not named'}"
    if traits.nodes and node.name not in traits.nodes:
        return f"its hints are for node {', '.join(traits.nodes)}"
    if traits.zones:
        return f"its hints are for zone {', '.join(traits.zones)}, this node is in {node.zone}"
    return "others are nearer"
