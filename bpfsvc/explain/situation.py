"""The node that a question is asked of: everything that is not an object of the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bpfsvc.address import family, pack_network
from bpfsvc.nodeports import NodePortAddresses
from bpfsvc.surroundings import NodeContext, ServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One node, as the programs see it.

    * ``addresses``: all that are the node's own, packed, loopback left out.
    * ``pod_networks``: clients out of these are pods, at most one CIDR of each family.
    * ``is_pod_interface``: whether clients that come by an interface are pods; None if that does
      not count.
    * ``node_ports``: at which of the addresses NodePorts are served.
    * ``service_networks``: CIDRs that cluster IPs are taken from.
    """

    node: NodeContext
    config: ServiceConfig
    addresses: tuple[bytes, ...]
    node_ports: NodePortAddresses
    pod_networks: tuple[str, ...] = ()
    is_pod_interface: Callable[[str], bool] | None = None
    service_networks: tuple[str, ...] = ()

    def client_class(self, source: bytes, interface: str, *, is_of_node: bool) -> str:
        """Name the class of a client, for the account. The programs find out for themselves."""
        if is_of_node:
            return "node"
        if self.is_pod_interface and self.is_pod_interface(interface):
            return "pod"
        if any(_is_in(source, cidr) for cidr in self.pod_networks):
            return "pod"
        return "node" if source in self.addresses else "other"


def _is_in(address: bytes, cidr: str) -> bool:
    network, mask = pack_network(cidr)
    return family(network) == family(address) and all(
        one & bits == other for one, bits, other in zip(address, mask, network, strict=True)
    )
