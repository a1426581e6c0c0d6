"""``loadBalancerSourceRanges``: which clients may use the addresses of a load balancer."""

from __future__ import annotations

from bpfsvc.base.address import family
from bpfsvc.base.networks import ALL_BITS, Network, bits_of, contains
from bpfsvc.model import Service
from bpfsvc.services.rules.context import NodeContext

_WHOLE_FAMILY = {4: 96, 6: 0}
"""Bits of the range that is a whole family."""


def source_ranges(service: Service, of_family: int, node: NodeContext) -> tuple[Network, ...]:
    """Return the ranges of one family, sorted; none if every client is allowed.

    A node that uses a load balancer's address as its own source is allowed if its real address is:
    the load balancer's addresses are then ranges as well.
    """
    if not service.source_ranges:
        return ()
    ranges = {
        Network(address, bits_of(mask))
        for address, mask in service.source_ranges
        if family(address) == of_family
    }
    if not ranges or min(network.bits for network in ranges) <= _WHOLE_FAMILY[of_family]:
        return ()
    primary = node.primary(of_family)
    if any(contains(network, primary) for network in ranges):
        vips = (vip for vip in service.load_balancer_ips if family(vip) == of_family)
        ranges.update(Network(address, ALL_BITS) for address in vips)
    return tuple(sorted(ranges))
