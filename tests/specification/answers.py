"""The result of bpfsvc's entries for a flow of a case.

Entries are only half of the result. The programs in the kernel find the class of the client, the
node addresses that accept NodePorts, and the networks of Services, and have their own tests; here
the specification decides these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, endpoint_text, pack
from bpfsvc.base.networks import contains
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.model import read_object
from bpfsvc.services.cache import Cache
from bpfsvc.services.entries import Frontend, ServiceEntries
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.view import evaluate
from tests.specification.clients import (
    destination,
    has_detector,
    is_from_node_address,
    is_local_pod,
    options,
)
from tests.specification.frontends import are_external_ips_allowed
from tests.specification.nodeports import is_accepted
from tests.specification.objects import Raw
from tests.specification.verdicts import service_cidrs

CONDITIONS = ("ready", "serving", "terminating")


class Answer(NamedTuple):
    """As a flow's ``expect``; hairpins are found by the kernel and not in ``masquerade``."""

    verdict: str
    endpoints: tuple[str, ...]
    masquerade: bool


UNTOUCHED = Answer("none", (), False)


def entries_of(case: Raw) -> ServiceEntries:
    """Return the entries of all Services of a case."""
    primary = case["node"].get("primary") or {}
    node = NodeContext(
        case["node"]["name"],
        case["node"].get("zone") or "",
        tuple(pack(address) for address in primary.values()),
    )
    cluster = Cache(node.name)
    for raw in case["endpointslices"]:
        cluster.apply(read_object(_slice_object(raw)), ())
    for raw in case["services"]:
        cluster.apply(read_object({"apiVersion": "v1", "kind": "Service", **raw}), ())
    entries: ServiceEntries = {}
    for key in cluster.service_keys():
        entries |= evaluate(*cluster.lookup(key), node, config_of(case)).entries
    return entries


def config_of(case: Raw) -> ServiceConfig:
    """Return the settings that change entries."""
    return ServiceConfig(
        detector_v4=has_detector(case, 4),
        detector_v6=has_detector(case, 6),
        masquerade_all=bool(options(case).get("masquerade_all")),
        allow_external_ips=are_external_ips_allowed(case),
    )


def client_class(case: Raw, flow: Raw) -> str:
    """Return the name of the policy for this client."""
    if is_local_pod(case, flow):
        return "pod"
    return "node" if is_from_node_address(case, flow) else "other"


def answer(case: Raw, flow: Raw, entries: ServiceEntries) -> Answer:
    """Look up as the kernel does: the exact address, the node's wildcard, what guards the rest."""
    source, port, protocol = pack(flow["src_ip"]), flow["dst_port"], PROTOCOLS[flow["proto"]]
    keys = [Frontend(pack(flow["dst_ip"]), port, protocol)]
    if is_accepted(case, destination(flow)):
        version = destination(flow).version
        wildcard = ANY_NODE_ADDRESS_V4 if version == 4 else ANY_NODE_ADDRESS_V6
        keys.append(Frontend(wildcard, port, protocol))
    keys.append(Frontend.rest(pack(flow["dst_ip"])))
    for key in keys:
        for port_entries in entries.values():
            if key in port_entries.frontends:
                policies = port_entries.frontends[key]
                if policies.restricted and not any(
                    contains(r, source) for r in port_entries.ranges
                ):
                    return Answer("drop", (), False)
                policy = getattr(policies, client_class(case, flow))
                if not policy.size:
                    return Answer("reject" if policy.reject else "drop", (), False)
                picked = port_entries.backends[policy.first : policy.first + policy.size]
                texts = tuple(endpoint_text(*backend.place) for backend in picked)
                return Answer("dnat", texts, policy.masquerade)
    if any(destination(flow) in network for network in service_cidrs(case)):
        return Answer("drop", (), False)
    return UNTOUCHED


def _slice_object(raw: Raw) -> dict[str, Any]:
    """Return a slice of a case with its kind and with conditions that are not 0 or 1."""
    endpoints = [point | {"conditions": _conditions(point)} for point in raw["endpoints"]]
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    return {**kind, **raw, "endpoints": endpoints}


def _conditions(point: Raw) -> dict[str, bool | None]:
    given = point.get("conditions") or {}
    return {
        name: None if given[name] is None else bool(given[name])
        for name in CONDITIONS
        if name in given
    }
