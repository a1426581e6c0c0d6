"""On which addresses of the node NodePorts answer: ``nodePortAddresses`` of kube-proxy.

A list of CIDRs is applied family by family, and a family without a CIDR answers on all of its
addresses: surprising, but clusters rely on it. Keywords stand for CIDRs (kube-proxy 1.37). Loopback
is special, as only the node itself can reach a NodePort there: at ::1 the list has to name it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bpfsvc.base.address import family, pack, pack_network
from bpfsvc.base.networks import ALL_BITS, Network, bits_of, contains
from bpfsvc.model import Node
from bpfsvc.services.rules.context import primary_address

PRIMARY, LOCALHOST, ALL = KEYWORDS = ("primary", "localhost", "all")
"""Stand for the node's own address in each family, for loopback, and for all addresses."""

_CIDRS = {LOCALHOST: ("127.0.0.0/8", "::1/128"), ALL: ("0.0.0.0/0", "::/0")}

LOOPBACK, LOOPBACK_V6 = pack("127.0.0.1"), pack("::1")

SHUT, OPEN, OPEN_LOOPBACK = NODEPORT_STATES = ("shut", "open", "open_loopback")
"""States of an address: NodePorts do not answer; they do; they do at all of 127/8."""

_LOOPBACK_NETWORK = Network(pack("127.0.0.0"), 104)
_WHOLE = {4: 96, 6: 0}


@dataclass(frozen=True, slots=True)
class NodePortAddresses:
    """The setting, resolved. ``localhost``: on loopback too, if the list has it."""

    networks: tuple[Network, ...] = ()
    localhost: bool = True

    def takes_all(self, of_family: int) -> bool:
        """True if every address of family 4 or 6 is accepted."""
        listed = self._of(of_family)
        return not listed or any(network.bits <= _WHOLE[of_family] for network in listed)

    def lists(self, address: bytes) -> bool:
        """True if the list alone accepts an address. ``::/0`` lists no IPv4 address."""
        of_family = family(address)
        return self.takes_all(of_family) or any(
            contains(network, address) for network in self._of(of_family)
        )

    def _of(self, of_family: int) -> list[Network]:
        return [network for network in self.networks if family(network.address) == of_family]

    def state(self, address: bytes) -> str:
        """Return ``SHUT``, ``OPEN`` or ``OPEN_LOOPBACK`` for an address of the node."""
        if address == LOOPBACK_V6:
            return OPEN if self.localhost and _ONLY_LOOPBACK_V6 in self.networks else SHUT
        if contains(_LOOPBACK_NETWORK, address):
            if not self.localhost or not self.lists(address):
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


_ONLY_LOOPBACK_V6 = Network(LOOPBACK_V6, ALL_BITS)


def resolve(setting: tuple[str, ...], node: Node, *, localhost: bool) -> NodePortAddresses:
    """Resolve the setting: CIDRs and keywords.

    Without an address in the Node object ``primary`` adds nothing for that family.
    """
    networks: list[Network] = []
    for value in setting:
        if value == PRIMARY:
            networks += _primary_networks(node)
        else:
            pairs = map(pack_network, _CIDRS.get(value, (value,)))
            networks += (Network(address, bits_of(mask)) for address, mask in pairs)
    return NodePortAddresses(tuple(networks), localhost)


def _primary_networks(node: Node) -> Iterator[Network]:
    for of_family in (4, 6):
        address = primary_address(node.addresses, of_family)
        if address and not is_loopback(address):
            yield Network(address, ALL_BITS)


def is_loopback(address: bytes) -> bool:
    """True for a packed address of 127/8, and for ::1."""
    return address == LOOPBACK_V6 or contains(_LOOPBACK_NETWORK, address)
