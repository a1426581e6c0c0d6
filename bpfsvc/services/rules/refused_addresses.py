"""External addresses that no Service is served at: they mean something else to every machine.

Anyone who may write a Service, or its status, could take the listeners of all nodes by them: the
unspecified address stands for every address of the node, and processes trust packets to loopback
addresses. Link-local addresses and addresses of nodes are served like any others, as kube-proxy
does it: simple load balancers write the addresses of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from ipaddress import ip_address

from bpfsvc.base.address import unpack
from bpfsvc.model import Service

_BROADCAST = "255.255.255.255"


@lru_cache(maxsize=4096)
def refusal(address: bytes) -> str:
    """Return what a packed address is, if no Service is served at it; "" for all others."""
    text = unpack(address)
    parsed = ip_address(text)
    if parsed.is_unspecified:
        return "the unspecified address"
    if parsed.is_loopback:
        return "a loopback address"
    if parsed.is_multicast:
        return "a multicast address"
    if text == _BROADCAST:
        return "the broadcast address"
    return ""


def refusals(service: Service) -> Iterator[str]:
    """Yield a text for each address of a Service that is refused."""
    fields = {
        "spec.externalIPs": service.external_ips,
        "status.loadBalancer.ingress": service.load_balancer_ips,
    }
    for field, addresses in fields.items():
        for address in addresses:
            if what := refusal(address):
                yield f"{field} has {unpack(address)}, {what}: not served there"
