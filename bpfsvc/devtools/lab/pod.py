"""Pods, and the two ways in which CNIs attach them, by a veth or by netkit.

*Routed* (Calico, AWS, kindnet): the host side of the veth has no address, there is one host route
to each pod, and the pod's gateway is a link-local address that every pod shares. *Bridged*
(Flannel, docker): the host sides are ports of ``cni0``, which holds the gateway's address, and pods
of one node reach each other below the IP layer.

A pod may have any address (``101.76.9.141``, say): outside its node's range it gets host routes on
every node.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.links import Address
from bpfsvc.devtools.lab.namespace import Namespace

if TYPE_CHECKING:
    from bpfsvc.devtools.lab.node import LabNode

_SHARED_GATEWAY: dict[int, Address] = {
    4: ipaddress.ip_address("169.254.1.1"),
    6: ipaddress.ip_address("fe80::1"),
}


class LabPod(Namespace):
    """A pod: a namespace with ``eth0``, whose other end is on its node, ``host_end``."""

    def __init__(
        self, node: LabNode, name: str, host_interface: str, addresses: dict[int, Address]
    ) -> None:
        cgroup = node.cgroup / "pods" / name if node.cgroup and node.holds_pods else None
        super().__init__(name, prefix=node.prefix, cgroup=cgroup)
        self.node = node
        self.addresses = addresses
        try:
            self._attach(host_interface)
        except BaseException:
            self.close()
            raise

    def _attach(self, host_interface: str) -> None:
        node = self.node
        self.host_end, self.uplink = links.pod_cable(
            node.pod_kind, node, host_interface, self, "eth0", node.pod_mtu
        )
        attach = _attach_bridged if node.bridge is not None else _attach_routed
        for address in self.addresses.values():
            attach(self, address)
        for address in self.addresses.values():
            links.await_address(self.uplink, address)

    @property
    def host_interface(self) -> str:
        """The name of the interface on the node."""
        return self.host_end.name

    def address(self, family: int = 4) -> str:
        """Return the pod's address of a family, as text; ``KeyError`` if it has none."""
        return str(self.addresses[family])

    def remove(self) -> None:
        """End the pod's processes and remove it from its node, while the lab runs."""
        self.node.forget(self)
        self.node.netlink.link("del", index=self.host_end.index)
        self.close()


def _attach_routed(pod: LabPod, address: Address) -> None:
    gateway = _SHARED_GATEWAY[address.version]
    links.add_address(pod.uplink, address)
    links.add_route(pod, links.host_route(gateway), pod.uplink)
    links.add_route(pod, links.default_route(address.version), pod.uplink, gateway)
    known = links.has_neighbours(pod.node.pod_kind)
    if known:
        links.add_neighbour(pod.uplink, gateway, pod.host_end.mac)
    if address.version == 6:
        links.add_address(pod.host_end, gateway, 64)
    links.add_route(pod.node, links.host_route(address), pod.host_end)
    if known:
        links.add_neighbour(pod.host_end, address, pod.uplink.mac)


def _attach_bridged(pod: LabPod, address: Address) -> None:
    node = pod.node
    assert node.bridge is not None
    pod.host_end.set(master=node.bridge.index)
    gateway = node.gateways[address.version]
    if address in node.pod_cidrs[address.version]:
        links.add_address(pod.uplink, address, node.pod_cidrs[address.version].prefixlen)
    else:
        links.add_address(pod.uplink, address)
        links.add_route(node, links.host_route(address), node.bridge)
    links.add_route(pod, links.default_route(address.version), pod.uplink, gateway)
    # A bridge gets carrier with its first port; only then do its addresses work.
    links.await_address(node.bridge, gateway)
