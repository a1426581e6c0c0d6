"""Who may use a load balancer's address (section 5)."""

from __future__ import annotations

from tests.specification.addresses import Address
from tests.specification.clients import node_ip, source
from tests.specification.frontends import VIP, Frontend
from tests.specification.objects import Raw, ServicePort, load_balancer_ips, source_ranges


def is_forbidden(case: Raw, flow: Raw, claims: list[Frontend]) -> bool:
    """Section 5: VIPs only; an address that is also an external IP is filtered all the same."""
    return any(one.kind == VIP and not is_allowed(case, one.port, source(flow)) for one in claims)


def is_allowed(case: Raw, port: ServicePort, client: Address) -> bool:
    """Section 5: by the list of the family; an empty list allows every client."""
    ranges = source_ranges(port)
    return (
        not ranges
        or any(client in one for one in ranges)
        or (admits_vips(case, port) and client in load_balancer_ips(port))
    )


def admits_vips(case: Raw, port: ServicePort) -> bool:
    """Section 5: a range with the node's IP makes every VIP an allowed source for all VIPs."""
    return any(node_ip(case, port.family) in one for one in source_ranges(port))
