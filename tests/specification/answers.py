"""What bpfsvc's rows answer to a flow of a case.

Rows are only half of an answer. Who the client is, whether an address of the node accepts NodePorts
and what networks belong to Services is found out in the kernel, which has its own tests; here the
specification says it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from bpfsvc.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, endpoint_text, pack
from bpfsvc.cluster import Cluster
from bpfsvc.desired import NodeContext, ServiceConfig, desired
from bpfsvc.model import read_object
from bpfsvc.networks import contains
from bpfsvc.rows import PROTOCOLS, Frontend, ServiceRows
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


def rows_of(case: Raw) -> ServiceRows:
    """Make the rows of all Services of a case."""
    primary = case["node"].get("primary") or {}
    node = NodeContext(
        case["node"]["name"],
        case["node"].get("zone") or "",
        tuple(pack(address) for address in primary.values()),
    )
    cluster = Cluster(node.name)
    for raw in case["endpointslices"]:
        cluster.apply(read_object(_slice_object(raw)), ())
    for raw in case["services"]:
        cluster.apply(read_object({"apiVersion": "v1", "kind": "Service", **raw}), ())
    rows: ServiceRows = {}
    for key in cluster.service_keys():
        rows |= desired(*cluster.lookup(key), node, config_of(case))
    return rows


def config_of(case: Raw) -> ServiceConfig:
    """Read the settings that change rows."""
    return ServiceConfig(
        detector_v4=has_detector(case, 4),
        detector_v6=has_detector(case, 6),
        masquerade_all=bool(options(case).get("masquerade_all")),
        allow_external_ips=are_external_ips_allowed(case),
    )


def client_class(case: Raw, flow: Raw) -> str:
    """Name the policy that is for this client."""
    if is_local_pod(case, flow):
        return "pod"
    return "node" if is_from_node_address(case, flow) else "other"


def answer(case: Raw, flow: Raw, rows: ServiceRows) -> Answer:
    """Look up as the kernel does: the exact address, the node's wildcard, what guards the rest."""
    source, port, protocol = pack(flow["src_ip"]), flow["dst_port"], PROTOCOLS[flow["proto"]]
    keys = [Frontend(pack(flow["dst_ip"]), port, protocol)]
    if is_accepted(case, destination(flow)):
        version = destination(flow).version
        wildcard = ANY_NODE_ADDRESS_V4 if version == 4 else ANY_NODE_ADDRESS_V6
        keys.append(Frontend(wildcard, port, protocol))
    keys.append(Frontend.rest(pack(flow["dst_ip"])))
    for key in keys:
        for port_rows in rows.values():
            if key in port_rows.frontends:
                policies = port_rows.frontends[key]
                if policies.restricted and not any(contains(r, source) for r in port_rows.ranges):
                    return Answer("drop", (), False)
                policy = getattr(policies, client_class(case, flow))
                if not policy.size:
                    return Answer("reject" if policy.reject else "drop", (), False)
                picked = port_rows.backends[policy.first : policy.first + policy.size]
                texts = tuple(endpoint_text(*backend.place) for backend in picked)
                return Answer("dnat", texts, policy.masquerade)
    if any(destination(flow) in network for network in service_cidrs(case)):
        return Answer("drop", (), False)
    return UNTOUCHED


def _slice_object(raw: Raw) -> dict[str, Any]:
    """Complete a slice of a case, which leaves out the kind and may write conditions as 0 or 1."""
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
