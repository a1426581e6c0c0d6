"""A node: the machine on which an agent runs, with everything that its CNI sets up.

Its addresses: ``192.168.50.<10+n>`` and ``fd50::<10+n>`` on the LAN (interface ``eth0``), pods from
``10.244.<n>.0/24`` and ``fd44:<n>::/64``. What runs on the node itself is in the cgroup
``node.cgroup``; an agent gets ``--cgroup-root {node.cgroup} --pin-root {node.pin_root}``.
"""

from __future__ import annotations

import ipaddress
import itertools
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.links import Address, End, Network, PairKind
from bpfsvc.devtools.lab.namespace import LabError, Namespace
from bpfsvc.devtools.lab.pod import LabPod

VXLAN_OVERHEAD = {4: 50, 6: 70}
"""Bytes that VXLAN adds to a packet, by the family of the underlay."""

_FIRST_POD = 11


class LabNode(Namespace):
    """A node with an uplink; ``Lab`` makes the nodes and connects them."""

    def __init__(
        self,
        number: int,
        *,
        prefix: str,
        families: Sequence[int],
        cgroup: Path,
        pin_root: Path,
        holds_pods: bool,
    ) -> None:
        super().__init__(f"node-{number}", prefix=prefix, cgroup=cgroup)
        self.number = number
        self.holds_pods = holds_pods
        self.pin_root = pin_root
        pin_root.mkdir(parents=True)
        self.pods: dict[str, LabPod] = {}
        self.peers: list[LabNode] = []
        self.addresses: dict[int, Address] = {}
        self.pod_cidrs: dict[int, Network] = {}
        self.gateways: dict[int, Address] = {}
        for family in families:
            lan, pods = (f"192.168.50.{10 + number}", f"10.244.{number}.0/24")
            if family == 6:
                lan, pods = (f"fd50::{10 + number}", f"fd44:{number}::/64")
            self.addresses[family] = ipaddress.ip_address(lan)
            self.pod_cidrs[family] = ipaddress.ip_network(pods)
            self.gateways[family] = self.pod_cidrs[family].network_address + 1
        self.uplink: End
        self.bridge: End | None = None
        self.tunnel: End | None = None
        self.pod_mtu = 1500
        self.pod_kind: PairKind = "veth"
        self._counter = itertools.count(_FIRST_POD)
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            self.sysctl(key, 1)
        # Tests ask refusing Services more often than the kernel would answer one client.
        for key in ("net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"):
            self.sysctl(key, 0)

    def address(self, family: int = 4) -> str:
        """Return the node's LAN address of a family, as text; ``KeyError`` if it has none."""
        return str(self.addresses[family])

    # -- what the CNI does at start ---------------------------------------------------------------

    def add_bridge(self) -> None:
        """Make ``cni0`` with the gateways of the pods."""
        self.bridge = links.bridge(self, "cni0", self.pod_mtu)
        for family, gateway in self.gateways.items():
            links.add_address(self.bridge, gateway, self.pod_cidrs[family].prefixlen)

    def add_tunnel(self) -> None:
        """Make ``flannel.1`` with the first address of the pods' range."""
        local = next(iter(self.addresses.values()))
        mtu = 1500 - VXLAN_OVERHEAD[local.version]
        self.tunnel = links.vxlan(
            self, "flannel.1", local=local, over=self.uplink, mac=self.tunnel_mac, mtu=mtu
        )
        for network in self.pod_cidrs.values():
            links.add_address(self.tunnel, network.network_address)

    @property
    def tunnel_mac(self) -> str:
        """The hardware address of the tunnel device, known to the peers before it exists."""
        return f"02:f1:a2:2e:01:{self.number:02x}"

    def add_peer(self, peer: LabNode) -> None:
        """Set up the routes to another node's pods."""
        self.peers.append(peer)
        if self.tunnel is not None:
            links.tunnel_peer(self.tunnel, peer.tunnel_mac, next(iter(peer.addresses.values())))
            for network in peer.pod_cidrs.values():
                links.add_neighbour(self.tunnel, network.network_address, peer.tunnel_mac)
        for network in peer.pod_cidrs.values():
            self._route_to_pods(peer, network)

    def _route_to_pods(self, peer: LabNode, network: Network) -> None:
        if self.tunnel is not None:
            via = peer.pod_cidrs[network.version].network_address
            links.add_route(self, network, self.tunnel, via)
        else:
            links.add_route(self, network, self.uplink, peer.addresses[network.version])

    def masquerade_pods(self, cluster_cidrs: Iterable[Network]) -> None:
        """Let netfilter masquerade packets from pods out of their range, as Flannel and AWS do."""
        rules = "\n".join(
            f"{'ip' if cidr.version == 4 else 'ip6'} saddr {cidr} "
            f"{'ip' if cidr.version == 4 else 'ip6'} daddr != {cidr} counter masquerade"
            for cidr in cluster_cidrs
        )
        chain = f"type nat hook postrouting priority srcnat; policy accept;\n{rules}\n"
        self.run(
            ["nft", "-f", "-"], input=f"table inet cni {{\nchain postrouting {{\n{chain}}}\n}}\n"
        )

    # -- pods -------------------------------------------------------------------------------------

    def add_pod(self, name: str | None = None, addresses: Iterable[str] = ()) -> LabPod:
        """Attach a pod, at any time. Families without an address given get the next of the range.

        ``LabError`` if the node has a pod of that name.
        """
        number = next(self._counter)
        name = name or f"pod-{self.number}-{number - _FIRST_POD + 1}"
        if name in self.pods:
            raise LabError(f"{self.name} has a pod {name!r} already")
        given = [ipaddress.ip_address(text) for text in addresses]
        chosen: dict[int, Address] = {address.version: address for address in given}
        for family, network in self.pod_cidrs.items():
            # The same digits in both families: 10.244.1.11 is fd44:1::11.
            offset = number if family == 4 else int(str(number), 16)
            chosen.setdefault(family, network.network_address + offset)
        chosen = {family: chosen[family] for family in self.pod_cidrs}
        kind = self.pod_kind.partition("-")[0]
        pod = LabPod(self, name, f"{kind}-{self.number}-{number}", chosen)
        self.pods[name] = pod
        for network in self._foreign(pod):
            for peer in self.peers:
                peer._route_to_pods(self, network)
        return pod

    def _foreign(self, pod: LabPod) -> list[Network]:
        return [
            links.host_route(address)
            for family, address in pod.addresses.items()
            if address not in self.pod_cidrs[family]
        ]

    def forget(self, pod: LabPod) -> None:
        """Remove the routes and neighbours of a removed pod from the nodes."""
        del self.pods[pod.name]
        for network in self._foreign(pod):
            for node in self.peers:
                links.delete_route(node, network)
            if self.bridge is not None:
                links.delete_route(self, network)

    def close(self) -> None:
        """End the pods and the node's processes, and remove the agents' pins.

        It works for a partly built node, too. After a failure it continues with the rest, and
        raises the first error at the end.
        """
        steps = [pod.close for pod in self.pods.values()]
        if self.cgroup is not None:
            pods = self.cgroup / "pods"
            steps.append(lambda: pods.rmdir() if pods.exists() else None)
        steps += [super().close, lambda: shutil.rmtree(self.pin_root)]
        errors = []
        for step in steps:
            try:
                step()
            except (BpfsvcError, OSError) as error:
                errors.append(error)
        if errors:
            raise errors[0]
