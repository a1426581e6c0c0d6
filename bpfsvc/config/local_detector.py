"""Which clients are pods of this node: by their address, or by the interface of their packets.

kube-proxy has four modes for this, and an operator chooses the one that fits the network. Ranges
are per family, so one family may have a detector and the other none. Interfaces work for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from bpfsvc.base.address import family, pack_network
from bpfsvc.model import Network, Node

Mode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDetector:
    """The chosen mode and its settings; the settings of other modes are unused."""

    mode: Mode = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    bridge: str = ""
    prefix: str = ""

    @property
    def by_interface(self) -> bool:
        """True if pods are identified by interface, whatever their addresses."""
        return self.mode in ("BridgeInterface", "InterfaceNamePrefix")

    def ranges(self, node: Node) -> dict[int, Network]:
        """Return the range of pods of each family (4, 6): the first that is given."""
        if self.mode == "ClusterCIDR":
            named: Iterable[Network] = map(pack_network, self.cluster_cidrs)
        elif self.mode == "NodeCIDR":
            named = node.pod_cidrs
        else:
            named = ()
        ranges: dict[int, Network] = {}
        for network in named:
            ranges.setdefault(family(network[0]), network)
        return ranges

    def families(self, node: Node) -> set[int]:
        """Return the families (4, 6) in which pods can be identified."""
        return {4, 6} if self.by_interface else set(self.ranges(node))

    def pod_interfaces(self, names: Mapping[int, str]) -> set[int]:
        """Return the indexes of the interfaces by which packets of pods arrive.

        ``names``: for each index the interface by which IP sees a packet arrive, that is, the
        bridge for a port of a bridge.
        """
        return {index for index, name in names.items() if self.is_for_pods(name)}

    def is_for_pods(self, name: str) -> bool:
        """True if packets that arrive by an interface of that name come from pods."""
        if self.mode == "BridgeInterface":
            return name == self.bridge
        return self.mode == "InterfaceNamePrefix" and name.startswith(self.prefix)
