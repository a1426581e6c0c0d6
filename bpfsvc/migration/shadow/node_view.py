"""The node as the programs see it: classes of clients, and addresses of NodePorts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family, pack
from bpfsvc.base.networks import Network, contains
from bpfsvc.base.ports import PortRange
from bpfsvc.services.entries import Frontend
from bpfsvc.services.rules.nodeport_addresses import (
    LOOPBACK,
    LOOPBACK_V6,
    OPEN_LOOPBACK,
    SHUT,
    NodePortAddresses,
)

_LOOPBACK_NETWORK = Network(pack("127.0.0.0"), 104)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """The node at one moment.

    * ``addresses``: the node's own, packed.
    * ``pods``: the ranges of the local detector.
    * ``by_interface``: True if pods are recognized by interface, which a connection does not show.
    * ``node_ports``, ``node_port_range``: the addresses and the numbers of NodePorts.
    * ``service_networks``: the networks of cluster IPs.
    """

    addresses: frozenset[bytes]
    pods: tuple[Network, ...] = ()
    by_interface: bool = False
    node_ports: NodePortAddresses
    node_port_range: PortRange
    service_networks: frozenset[Network] = frozenset()

    def is_own(self, address: bytes) -> bool:
        """True for an address of this node, loopback included."""
        return (
            address in self.addresses
            or address == LOOPBACK_V6
            or contains(_LOOPBACK_NETWORK, address)
        )

    def is_pod(self, address: bytes) -> bool:
        """True if the local detector takes the address for a pod's."""
        return any(contains(network, address) for network in self.pods)

    def knows_pods(self, of_family: int) -> bool:
        """True if the local detector has a range in family 4 or 6."""
        return any(family(network.address) == of_family for network in self.pods)

    def classes(self, client: bytes) -> tuple[str, ...]:
        """Return the classes of a client; two where only its interface would tell."""
        if self.is_pod(client):
            return ("pod",)
        if self.is_own(client):
            return ("node",)
        return ("pod", "other") if self.by_interface else ("other",)

    def frontends(self, address: bytes, port: int, protocol: int) -> Iterator[Frontend]:
        """Yield the frontends by which a destination is looked up, in this order."""
        yield Frontend(address, port, protocol)
        if self._serves_node_ports(address):
            of_any = ANY_NODE_ADDRESS_V4 if family(address) == 4 else ANY_NODE_ADDRESS_V6
            yield Frontend(of_any, port, protocol)

    def is_node_port(self, address: bytes, port: int) -> bool:
        """True for a port of this node that is kept for NodePorts."""
        first, last = self.node_port_range.first, self.node_port_range.last
        return self.is_own(address) and first <= port <= last

    def is_cluster_ip(self, address: bytes) -> bool:
        """True for an address in a network of cluster IPs."""
        return any(contains(network, address) for network in self.service_networks)

    def _serves_node_ports(self, address: bytes) -> bool:
        if address in self.addresses or address == LOOPBACK_V6:
            return self.node_ports.state(address) != SHUT
        return (
            contains(_LOOPBACK_NETWORK, address)
            and self.node_ports.state(LOOPBACK) == OPEN_LOOPBACK
        )
