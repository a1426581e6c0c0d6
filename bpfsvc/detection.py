"""Who is a pod of this node: by its address, or by the interface its packets come in.

kube-proxy has four ways to tell, and an operator chooses the one that fits the network. Ranges are
per family, so one family may have a detector and the other none; interfaces serve both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bpfsvc.address import family, pack_network
from bpfsvc.datapath.netlink.devices import Device
from bpfsvc.model import Network, Node

Mode = Literal["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Detection:
    """The way chosen, and what it needs: the others' settings do not matter."""

    mode: Mode = "ClusterCIDR"
    cluster_cidrs: tuple[str, ...] = ()
    bridge: str = ""
    prefix: str = ""

    @property
    def by_interface(self) -> bool:
        """Whether interfaces tell, whatever the addresses."""
        return self.mode in ("BridgeInterface", "InterfaceNamePrefix")

    def ranges(self, node: Node) -> dict[int, Network]:
        """Give the range of pods of each family that has one: the first that is named."""
        if self.mode == "ClusterCIDR":
            named: Iterable[Network] = map(pack_network, self.cluster_cidrs)
        elif self.mode == "NodeCIDR":
            named = node.pod_cidrs
        else:
            named = ()
        found: dict[int, Network] = {}
        for network in named:
            found.setdefault(family(network[0]), network)
        return found

    def families(self, node: Node) -> set[int]:
        """Give the families (4, 6) in which pods can be told from others."""
        return {4, 6} if self.by_interface else set(self.ranges(node))

    def pod_interfaces(self, devices: Iterable[Device]) -> set[int]:
        """Give the indexes of the interfaces that pods come by.

        What comes by the port of a bridge has come by the bridge to everybody above, so it is the
        bridge's name that counts.
        """
        known = {device.index: device for device in devices}
        return {
            index for index, device in known.items() if self.is_for_pods(_seen_as(device, known))
        }

    def is_for_pods(self, name: str) -> bool:
        """Whether what comes by an interface of that name comes from pods."""
        if self.mode == "BridgeInterface":
            return name == self.bridge
        return self.mode == "InterfaceNamePrefix" and name.startswith(self.prefix)


def _seen_as(device: Device, known: dict[int, Device]) -> str:
    master = known.get(device.master)
    return master.name if master and master.kind == "bridge" else device.name
