"""On which addresses of the node NodePorts answer: ``nodePortAddresses`` of kube-proxy.

A list of CIDRs is applied family by family, and a family without a CIDR answers on all of its
addresses: surprising, but clusters rely on it. Loopback is special, as only the node itself can
reach a NodePort there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bpfsvc.base.address import family, pack, pack_network
from bpfsvc.base.networks import ALL_BITS, Network, bits_of, contains
from bpfsvc.model import Node
from bpfsvc.services.rules.context import primary_address

PRIMARY = "primary"
"""Instead of a list: the node's own address in each family."""

LOOPBACK = pack("127.0.0.1")

SHUT, OPEN, OPEN_LOOPBACK = NODEPORT_STATES = ("shut", "open", "open_loopback")
"""States of an address: NodePorts do not answer; they do; they do at all of 127/8."""

_LOOPBACK_NETWORK = Network(pack("127.0.0.0"), 104)
_WHOLE = {4: 96, 6: 0}


@dataclass(frozen=True, slots=True)
class NodePortAddresses:
    """The setting, resolved. ``localhost``: IPv4 loopback too, unless the list excludes it."""

    networks: tuple[Network, ...] = ()
    localhost: bool = True

    def takes_all(self, of_family: int) -> bool:
        """True if every address of family 4 or 6 is accepted."""
        listed = [network for network in self.networks if family(network.address) == of_family]
        return not listed or any(network.bits <= _WHOLE[of_family] for network in listed)

    def lists(self, address: bytes) -> bool:
        """True if the list alone accepts an address."""
        return self.takes_all(family(address)) or any(
            contains(network, address) for network in self.networks
        )

    def state(self, address: bytes) -> str:
        """Return ``SHUT``, ``OPEN`` or ``OPEN_LOOPBACK`` for an address of the node."""
        if address == _V6_LOOPBACK:
            return SHUT
        if contains(_LOOPBACK_NETWORK, address):
            if not self._takes_loopback() or not self.lists(address):
                return SHUT
            return OPEN_LOOPBACK if self.takes_all(4) and address == LOOPBACK else OPEN
        return OPEN if self.lists(address) else SHUT

    def listening(self, addresses: Iterable[bytes], of_family: int) -> tuple[bytes, ...]:
        """Return the addresses of one family to listen on for health checks.

        ``addresses`` are the node's own; the wildcard address means all.
        """
        if self.takes_all(of_family):
            return (pack("0.0.0.0" if of_family == 4 else "::"),)
        own = {address for address in addresses if family(address) == of_family}
        return tuple(sorted(address for address in own if self.lists(address)))

    def _takes_loopback(self) -> bool:
        return self.localhost and (
            self.takes_all(4)
            or any(
                contains(_LOOPBACK_NETWORK, network.address)
                or contains(network, _LOOPBACK_NETWORK.address)
                for network in self.networks
                if family(network.address) == 4
            )
        )


_V6_LOOPBACK = pack("::1")


def resolve(setting: tuple[str, ...], node: Node, *, localhost: bool) -> NodePortAddresses:
    """Resolve the setting: CIDRs, or ``primary`` alone.

    Without an address in the Node object ``primary`` means all addresses of that family.
    """
    if setting == (PRIMARY,):
        addresses = (primary_address(node.addresses, of_family) for of_family in (4, 6))
        networks = [
            Network(address, ALL_BITS)
            for address in addresses
            if address and not _is_loopback(address)
        ]
    else:
        pairs = map(pack_network, setting)
        networks = [Network(address, bits_of(mask)) for address, mask in pairs]
    return NodePortAddresses(tuple(networks), localhost)


def _is_loopback(address: bytes) -> bool:
    return address == _V6_LOOPBACK or contains(_LOOPBACK_NETWORK, address)
