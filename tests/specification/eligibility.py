"""The sets of endpoints a connection may be sent to (section 3)."""

from __future__ import annotations

from tests.specification.endpoints import Endpoint, endpoints, node_name
from tests.specification.objects import (
    Raw,
    ServicePort,
    is_external_local,
    is_externally_accessible,
    is_internal_local,
)


def uses_cluster(port: ServicePort) -> bool:
    """Section 3.3: C is needed unless only internal clients exist and they stay local."""
    return not is_internal_local(port) or is_externally_accessible(port)


def uses_local(port: ServicePort) -> bool:
    """Section 3.3: L is needed where a policy that counts says Local."""
    return is_internal_local(port) or (is_external_local(port) and is_externally_accessible(port))


def cluster_set(case: Raw, port: ServicePort) -> list[Endpoint]:
    """Section 3.1: C, the ready ones narrowed by hints, else all draining ones."""
    if not uses_cluster(port):
        return []
    ready = [one for one in endpoints(case, port) if one.ready]
    draining = [one for one in endpoints(case, port) if one.draining]
    return by_hints(case, ready) or draining


def local_set(case: Raw, port: ServicePort) -> list[Endpoint]:
    """Section 3.2: L, the local ready ones, else the local draining ones; no hints."""
    if not uses_local(port):
        return []
    local = [one for one in endpoints(case, port) if one.is_local]
    ready = [one for one in local if one.ready]
    draining = [one for one in local if one.draining]
    return ready or draining


def is_usable_anywhere(case: Raw, port: ServicePort) -> bool:
    """Section 3.5: H, which decides between REJECT and DROP."""
    if cluster_set(case, port):
        return True
    usable = [one for one in endpoints(case, port) if one.ready or one.draining]
    return uses_local(port) and bool(usable)


def by_hints(case: Raw, ready: list[Endpoint]) -> list[Endpoint]:
    """Section 3.4: this node's, if all have node hints; else this zone's, likewise; else all."""
    node, zone = node_name(case), case["node"].get("zone")
    for_node = [one for one in ready if node in one.nodes]
    if for_node and all(one.nodes for one in ready):
        return for_node
    for_zone = [one for one in ready if zone and zone in one.zones]
    if for_zone and all(one.zones for one in ready):
        return for_zone
    return ready
