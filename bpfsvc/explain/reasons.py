"""The rules behind an answer, and each endpoint that is not eligible, with the reason.

The programs decide by the entries in the kernel. This module decides nothing: it reads from the
objects why the entries are as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.base.networks import contains, network_text
from bpfsvc.explain.answer import Outcome
from bpfsvc.explain.schedule import quiesced, schedule_reasons
from bpfsvc.explain.spill import spilled_to
from bpfsvc.model import Port, Service, Traits
from bpfsvc.services.cache import Known
from bpfsvc.services.entries import Backend, Frontend, Place, ServicePort
from bpfsvc.services.port_endpoints import PortEndpoints
from bpfsvc.services.rules.context import NodeContext
from bpfsvc.services.rules.desired import is_external_local
from bpfsvc.services.rules.endpoints import in_order, merge_port
from bpfsvc.services.rules.source_ranges import source_ranges

CLIENTS = {
    "pod": "a pod of this node",
    "node": "this node itself",
    "other": "neither a pod of this node nor the node itself",
}
"""What each kind of client is, in words."""


_NONE: Mapping[Place, bool] = {}


def reasons(
    outcome: Outcome,
    known: Known,
    node: NodeContext,
    others: Iterable[str] = (),
    quarantine: Mapping[Place, bool] = _NONE,
) -> Iterator[str]:
    """Yield the reasons, in the order in which the rules are applied.

    ``others``: a text for each Service that names the frontend, too. ``quarantine``: the endpoints
    in quarantine; True for one that is on trial.
    """
    service, owner = known.service, outcome.owner.port
    port = _port(service, owner)
    if service is None or port is None:
        yield "the Service was deleted, but its entries are still in the kernel"
        return
    kind = _kind(service, outcome.frontend)
    yield f"the frontend is {kind} of {owner.namespace}/{owner.name}, port {_port_text(port)}"
    yield from others
    yield f"the client is {CLIENTS[outcome.client]}"
    if outcome.policies.restricted:
        ranges = source_ranges(service, owner.family, node)
        texts = ", ".join(map(network_text, ranges))
        source = outcome.question.source
        if not any(contains(network, source) for network in ranges):
            yield f"loadBalancerSourceRanges ({texts}) do not contain {unpack(source)}: dropped"
            return
        yield f"loadBalancerSourceRanges ({texts}) contain {unpack(source)}: allowed"
    is_external = kind != "the cluster IP"
    yield _external_policy(service, outcome) if is_external else _internal_policy(service)
    yield from clients_seen(outcome, _why_masqueraded(service, outcome, is_external=is_external))
    local_only = (
        is_external_local(service) and outcome.client == "other"
        if is_external
        else service.internal_local
    )
    endpoints = merge_port(in_order(known.slices), owner, node)
    eligible = endpoints.eligible.local if local_only else endpoints.eligible.cluster
    if not outcome.policy.size:
        yield _why_none(outcome, has_eligible=bool(eligible))
    yield from schedule_reasons(outcome)
    yield from _weightless(outcome, eligible, quarantine)
    yield from _excluded(endpoints, node, local_only, spilled_to(outcome))
    if outcome.policies.affinity_seconds:
        yield (
            "sessionAffinity ClientIP: a client that returns within"
            f" {outcome.policies.affinity_seconds} s gets the same endpoint, if it is eligible"
        )
    yield from echo_reasons(outcome)


def _weightless(
    outcome: Outcome, eligible: Iterable[Backend], quarantine: Mapping[Place, bool]
) -> Iterator[str]:
    """Yield eligible endpoints that are not chosen, or only until the next attempt fails."""
    unused = quiesced(outcome)
    for backend in (endpoint.place for endpoint in eligible):
        if backend in unused:
            yield f"{endpoint_text(*backend)} {_WHY_UNUSED[quarantine.get(backend)]}"
        elif quarantine.get(backend):
            yield f"{endpoint_text(*backend)} is on trial after a quarantine"


_WHY_UNUSED = {
    None: "is not chosen: its weight is 0",
    False: "is not chosen: connections to it failed (quarantine)",
    True: "is on trial after a quarantine: it gets one new connection at a time",
}
"""By whether the endpoint is on trial; None: it is not in quarantine."""


def echo_reasons(outcome: Outcome) -> Iterator[str]:
    """Yield what happens to a ping of the frontend's address, if that is answered."""
    if outcome.policies.echo:
        yield f"a ping of {unpack(outcome.frontend.address)} is answered by this node (vipEcho)"


def _port(service: Service | None, owner: ServicePort) -> Port | None:
    ports = service.ports if service else ()
    return next(
        (port for port in ports if (port.name, port.protocol) == (owner.port_name, owner.protocol)),
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


def _internal_policy(service: Service) -> str:
    if service.internal_local:
        return "internalTrafficPolicy Local: only endpoints on this node"
    return "internalTrafficPolicy Cluster: every endpoint"


def _external_policy(service: Service, outcome: Outcome) -> str:
    if not is_external_local(service):
        return "externalTrafficPolicy Cluster: every endpoint"
    if outcome.client == "other":
        return "externalTrafficPolicy Local: only endpoints on this node"
    return (
        f"externalTrafficPolicy Local, but the client is {CLIENTS[outcome.client]}:"
        " every endpoint (short-circuit)"
    )


def _why_masqueraded(service: Service, outcome: Outcome, *, is_external: bool) -> str:
    """Return the rule by which all clients of this kind are masqueraded, if they are."""
    if is_external and not is_external_local(service):
        return "external traffic is masqueraded, so that its answers pass this node"
    if is_external:
        return "the client is this node: masqueraded"
    if outcome.client == "pod":
        return "masqueradeAll: all traffic to cluster IPs is masqueraded"
    return "the client is not a pod of this node: masqueraded"


def clients_seen(outcome: Outcome, rule: str) -> Iterator[str]:
    """Yield which endpoints see an address of this node in place of the client's, and why.

    ``rule`` masquerades all clients of this kind, where the policy says so.
    """
    masqueraded, staying = set(outcome.masqueraded), outcome.staying
    for backend in outcome.hairpins if not outcome.policy.masquerade else ():
        if backend in masqueraded:
            yield f"{endpoint_text(*backend.place)} is the client itself: masqueraded (hairpin)"
    if outcome.policy.masquerade and masqueraded:
        yield rule
    elif len(masqueraded) + len(staying) < len(outcome.backends):
        yield f"{'all others see' if masqueraded else 'endpoints see'} the address of the client"
    for backend in staying:
        yield (
            f"{endpoint_text(*backend.place)} is this node: the packet does not leave it, so this"
            " endpoint sees the address of the client"
        )


def _why_none(outcome: Outcome, *, has_eligible: bool) -> str:
    if not outcome.policy.reject:
        return "no endpoint on this node is usable, but others are: dropped"
    if has_eligible:
        return "all endpoints for such clients have weight 0: rejected"
    return "no endpoint is usable anywhere: rejected"


def _excluded(
    port: PortEndpoints, node: NodeContext, local_only: bool, spilled: Collection[Place]
) -> Iterator[str]:
    """Yield the endpoints that are not eligible, each with the reason.

    ``spilled``: endpoints that connections may overflow to.
    """
    endpoints, eligible = port.all, port.eligible
    chosen = {backend.place for backend in (eligible.local if local_only else eligible.cluster)}
    if not endpoints:
        yield "there are no endpoints"
    if any(traits.draining and endpoint in chosen for endpoint, traits in endpoints.items()):
        yield "no endpoint is ready: those that terminate but still serve are used"
    for endpoint, traits in sorted(endpoints.items(), key=lambda pair: endpoint_text(*pair[0])):
        if endpoint not in chosen:
            why = _why_not(traits, node, local_only)
            what = "is far" if endpoint in spilled else "is not eligible"
            more = ", and connections may overflow to it" if endpoint in spilled else ""
            yield f"{endpoint_text(*endpoint)} {what}: {why}{more}"


def _why_not(traits: Traits, node: NodeContext, local_only: bool) -> str:
    if not traits.ready:
        if traits.draining:
            return "it terminates, and others are ready"
        return "it is terminating" if traits.terminating else "it is not ready"
    if local_only and traits.node != node.name:
        return f"it is on {traits.node or 'an unnamed node'}"
    if traits.nodes and node.name not in traits.nodes:
        return f"its hints are for node {', '.join(traits.nodes)}"
    if traits.zones:
        return f"its hints are for zone {', '.join(traits.zones)}, this node is in {node.zone}"
    return "others are closer"
