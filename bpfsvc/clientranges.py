"""``loadBalancerSourceRanges``: from where the addresses of a load balancer may be used."""

from __future__ import annotations

from bpfsvc.address import family
from bpfsvc.model import Service
from bpfsvc.networks import ALL_BITS, bits_of, contains
from bpfsvc.rows import Network
from bpfsvc.surroundings import NodeContext

_SHORTEST = {4: 96, 6: 0}
"""Bits of the range that is a whole family."""


def client_ranges(service: Service, of_family: int, node: NodeContext) -> tuple[Network, ...]:
    """Give the ranges of one family, sorted; none if everybody may come.

    A node that uses a load balancer's address as its own source is let in, if its real address
    is: the load balancer's addresses are then ranges as well.
    """
    if not service.source_ranges:
        return ()
    found = {
        Network(address, bits_of(mask))
        for address, mask in service.source_ranges
        if family(address) == of_family
    }
    if not found or min(one.bits for one in found) <= _SHORTEST[of_family]:
        return ()
    primary = node.primary(of_family)
    if any(contains(one, primary) for one in found):
        vips = (one for one in service.load_balancer_ips if family(one) == of_family)
        found.update(Network(address, ALL_BITS) for address in vips)
    return tuple(sorted(found))
