"""The frontends of service ports, and which of them matches a packet (section 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.specification.addresses import Address
from tests.specification.clients import destination, options
from tests.specification.nodeports import is_accepted
from tests.specification.objects import (
    Raw,
    ServicePort,
    external_ips,
    load_balancer_ips,
    service_ports,
)

CLUSTER_IP, EXTERNAL_IP, VIP, NODE_PORT = "ClusterIP", "externalIP", "VIP", "NodePort"


class Frontend(NamedTuple):
    """``address`` is None for a NodePort, which answers on accepted node addresses."""

    kind: str
    port: ServicePort
    address: Address | None
    number: int


def are_external_ips_allowed(case: Raw) -> bool:
    """Section 1.3: gate AllowServiceExternalIPs, on by default."""
    gates = options(case).get("feature_gates") or {}
    return gates.get("AllowServiceExternalIPs") is not False


def frontends(case: Raw) -> Iterator[Frontend]:
    """Section 2: all frontends of all service ports."""
    for port in service_ports(case):
        yield Frontend(CLUSTER_IP, port, port.cluster_ip, port.number)
        if are_external_ips_allowed(case):
            for address in external_ips(port):
                yield Frontend(EXTERNAL_IP, port, address, port.number)
        for address in load_balancer_ips(port):
            yield Frontend(VIP, port, address, port.number)
        if port.node_port:
            yield Frontend(NODE_PORT, port, None, port.node_port)


def matching(case: Raw, flow: Raw) -> list[Frontend]:
    """Section 2: the frontends a packet matches; a NodePort only if no address is named itself.

    More than one if several Services, or one Service twice, claim the place.
    """
    wanted = flow["proto"], flow.get("dst_port"), destination(flow).version
    same_port = [
        one for one in frontends(case) if (one.port.protocol, one.number, one.port.family) == wanted
    ]
    named = [one for one in same_port if one.address == destination(flow)]
    node_ports = [one for one in same_port if one.kind == NODE_PORT]
    if named or not is_accepted(case, destination(flow)):
        return named
    return node_ports


def is_disputed(claims: list[Frontend]) -> bool:
    """Section 2: True if the outcome is unspecified, because the claims differ."""
    return len({(one.port.identity, one.kind == CLUSTER_IP) for one in claims}) > 1
