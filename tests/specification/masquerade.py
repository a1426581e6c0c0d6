"""Whose source address is replaced by one of the node (section 6.2)."""

from __future__ import annotations

from tests.specification.clients import (
    HOST,
    has_detector,
    is_from_node_address,
    is_local_pod,
    node_addresses,
    options,
    source,
)
from tests.specification.endpoints import Endpoint
from tests.specification.objects import Raw


def for_cluster_ip(case: Raw, flow: Raw) -> bool:
    """Section 6.2: every client with masqueradeAll; else those known not to be local pods."""
    if options(case).get("masquerade_all"):
        return True
    return has_detector(case, source(flow).version) and not is_local_pod(case, flow)


def for_external(case: Raw, flow: Raw, *, local_policy: bool) -> bool:
    """Section 6.2: always with eTP Cluster; with Local only what the node itself sends."""
    if not local_policy:
        return True
    return not is_local_pod(case, flow) and is_from_node_address(case, flow)


def is_hairpin(flow: Raw, endpoint: Endpoint) -> bool:
    """Section 6.2: a client that is sent to itself; in nftables mode local by ``nodeName``."""
    return endpoint.is_local and endpoint.address == source(flow)


def leaves_node(case: Raw, flow: Raw, endpoint: Endpoint) -> bool:
    """Section 6.2: what came in and is delivered to the host itself keeps the client's address."""
    return flow["from"] in HOST or endpoint.address not in node_addresses(case)


def masqueraded(
    case: Raw, flow: Raw, eligible: list[Endpoint], *, by_table: bool
) -> list[Endpoint]:
    """Section 6.2: the endpoints that would see an address of this node."""
    return [
        one
        for one in eligible
        if leaves_node(case, flow, one) and (by_table or is_hairpin(flow, one))
    ]
