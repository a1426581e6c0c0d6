"""The whole lab: nodes on a LAN, their pods, and a client outside the cluster.

::

    client 192.168.50.100 ──┐            ┌── node-1 .11 ── pods 10.244.1.11, .12 ...
                            ├── switch ──┤
    far 192.168.60.100 ─ router .253     └── node-2 .12 ── pods 10.244.2.11, .12 ...

The client knows the LAN only: it reaches pods and Service addresses after ``client.route``. Nodes
have a default route to the switch (.254), which forwards nothing: untranslated packets end there.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeVar

from bpfsvc.devtools.lab import links, sandbox
from bpfsvc.devtools.lab.environment import Environment
from bpfsvc.devtools.lab.links import Address, End, Network, PairKind
from bpfsvc.devtools.lab.namespace import LabError, Namespace
from bpfsvc.devtools.lab.node import VXLAN_OVERHEAD, LabNode
from bpfsvc.devtools.lab.pod import LabPod

CLUSTER_CIDRS: dict[int, Network] = {
    4: ipaddress.ip_network("10.244.0.0/16"),
    6: ipaddress.ip_network("fd44::/16"),
}
_LAN = {4: ("192.168.50.", 24), 6: ("fd50::", 64)}
_FAR = {4: ("192.168.60.", 24), 6: ("fd60::", 64)}
_CLIENT, _ROUTER, _SWITCH = 100, 253, 254

_N = TypeVar("_N", bound=Namespace)
_serial = itertools.count(1)


class LabClient(Namespace):
    """A machine outside the cluster, with one interface ``eth0``."""

    def __init__(self, name: str, *, prefix: str) -> None:
        super().__init__(name, prefix=prefix)
        self.addresses: dict[int, Address] = {}
        self.uplink: End

    def address(self, family: int = 4) -> str:
        """Return the address of a family, as text; ``KeyError`` if there is none."""
        return str(self.addresses[family])

    def route(self, to: str, via: LabNode) -> None:
        """Route an address or a network through a node."""
        network = ipaddress.ip_network(to)
        links.add_route(self, network, self.uplink, via.addresses[network.version])


class Lab(Environment):
    """A context manager: the network exists inside the block.

    ``overlay="vxlan"`` carries pod traffic between nodes in VXLAN; ``cni_masquerade`` masquerades
    in netfilter packets that pods send out of the pod range; ``holds_pods`` puts pods' processes
    below the cgroup of their node (by default they are outside it, and its socket hooks do not see
    them); ``pod_kind``: pods are connected by a veth or by netkit; ``pod_mtu`` overrides the MTU
    that fits the overlay; ``far_mtu`` adds ``lab.far``, a client behind a router; the link between
    them has that MTU. ``rp_filter`` on the nodes is strict
    (1), but loose (2) for an overlay without masquerade: pods reach another node's own address past
    the tunnel, and its replies come through it.
    """

    def __init__(
        self,
        layout: Literal["routed", "bridge"] = "routed",
        overlay: Literal["vxlan"] | None = None,
        *,
        families: Sequence[int] = (4, 6),
        nodes: int = 2,
        pods_per_node: int = 2,
        cni_masquerade: bool = False,
        holds_pods: bool = False,
        pod_mtu: int | None = None,
        far_mtu: int | None = None,
        rp_filter: int | None = None,
        pod_kind: PairKind = "veth",
    ) -> None:
        super().__init__()
        sandbox.require()
        if layout not in ("routed", "bridge") or overlay not in (None, "vxlan"):
            raise LabError(
                f"no such network: layout {layout!r}, overlay {overlay!r}",
                "layout is 'routed' or 'bridge', overlay None or 'vxlan'",
            )
        if not families or not set(families) <= {4, 6}:
            raise LabError(f"families {families!r} are not some of 4 and 6")
        self.layout, self.overlay, self.families = layout, overlay, tuple(sorted(families))
        self.cluster_cidrs = {family: CLUSTER_CIDRS[family] for family in self.families}
        self.nodes: list[LabNode] = []
        self.client: LabClient
        self.switch: Namespace
        self._far: LabClient | None = None
        self._counts = (nodes, pods_per_node)
        self.cni_masquerade, self._holds_pods, self._far_mtu = cni_masquerade, holds_pods, far_mtu
        if rp_filter is None:
            rp_filter = 2 if overlay and not cni_masquerade else 1
        self._rp_filter = rp_filter
        self._pod_kind: PairKind = pod_kind
        overhead = VXLAN_OVERHEAD[self.families[0]] if overlay else 0
        self._pod_mtu = pod_mtu or 1500 - overhead

    @property
    def pods(self) -> list[LabPod]:
        """All pods, in the order of nodes."""
        return [pod for node in self.nodes for pod in node.pods.values()]

    @property
    def far(self) -> LabClient:
        """The client behind the router; ``LabError`` without ``far_mtu``."""
        if self._far is None:
            raise LabError("this lab has no far client", "pass far_mtu to Lab")
        return self._far

    def serve(self, port: int = 8080) -> None:
        """Start an echo server in every pod."""
        for pod in self.pods:
            pod.serve(port)

    def _build(self) -> None:
        name = f"lab{next(_serial)}"
        for tree in (sandbox.CGROUP_ROOT / name, sandbox.BPF_ROOT / name):
            tree.mkdir()
            self._stack.callback(tree.rmdir)
        prefix = f"{name}-"
        self.switch = self._open(Namespace("switch", prefix=prefix))
        self._only_switch()
        lan = links.bridge(self.switch, "br0")
        for family in self.families:
            links.add_address(lan, *_host(_LAN, family, _SWITCH))
        self.client = self._open(LabClient("client", prefix=prefix))
        self.client.uplink = self._plug(lan, self.client, _CLIENT)
        self.client.addresses = self._hosts(_LAN, _CLIENT)
        for number in range(1, self._counts[0] + 1):
            node = self._open(
                LabNode(
                    number,
                    prefix=prefix,
                    families=self.families,
                    holds_pods=self._holds_pods,
                    cgroup=sandbox.CGROUP_ROOT / name / f"node-{number}",
                    pin_root=sandbox.BPF_ROOT / name / f"node-{number}",
                )
            )
            self.nodes.append(node)
            self._set_up_node(node, lan)
        for node, peer in itertools.permutations(self.nodes, 2):
            node.add_peer(peer)
        if self._far_mtu is not None:
            self._far = self._build_far(prefix, lan, self._far_mtu)
        for node in self.nodes:
            for _ in range(self._counts[1]):
                node.add_pod()

    def _only_switch(self) -> None:
        """Keep netfilter out of the switch: a network has no work of a node's processors.

        Where the kernel has br_netfilter, it sees the packets that bridges of a new namespace
        forward.
        """
        for rules in ("iptables", "ip6tables", "arptables"):
            with suppress(FileNotFoundError):
                self.switch.sysctl(f"net.bridge.bridge-nf-call-{rules}", 0)

    def _open(self, made: _N) -> _N:
        self._stack.callback(made.close)
        return made

    def _hosts(self, subnet: dict[int, tuple[str, int]], number: int) -> dict[int, Address]:
        return {family: _host(subnet, family, number)[0] for family in self.families}

    def _plug(self, lan: End, machine: Namespace, number: int) -> End:
        """Connect a machine's eth0 to the switch."""
        port, uplink = links.cable(lan.namespace, f"{machine.name}", machine, "eth0")
        port.set(master=lan.index)
        for family in self.families:
            links.add_address(uplink, *_host(_LAN, family, number))
        return uplink

    def _set_up_node(self, node: LabNode, lan: End) -> None:
        """Set up one node as its distribution and its CNI do at start."""
        for scope in ("all", "default"):
            node.sysctl(f"net.ipv4.conf.{scope}.rp_filter", self._rp_filter)
        node.uplink = self._plug(lan, node, 10 + node.number)
        for family, switch in self._hosts(_LAN, _SWITCH).items():
            links.add_route(node, links.default_route(family), node.uplink, switch)
        node.pod_mtu = self._pod_mtu
        node.pod_kind = self._pod_kind
        if self.overlay == "vxlan":
            node.add_tunnel()
        if self.layout == "bridge":
            node.add_bridge()
        if self.cni_masquerade:
            node.masquerade_pods(self.cluster_cidrs.values())

    def _build_far(self, prefix: str, lan: End, mtu: int) -> LabClient:
        router = self._open(Namespace("router", prefix=prefix))
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            router.sysctl(key, 1)
        self._plug(lan, router, _ROUTER)
        far = self._open(LabClient("far", prefix=prefix))
        narrow, far.uplink = links.cable(router, "far", far, "eth0")
        # Only the router's side is narrow: the client must not know, or it would ask for small
        # segments and no error message would ever be needed.
        narrow.set(mtu=mtu)
        far.addresses = self._hosts(_FAR, _CLIENT)
        gateways = self._hosts(_LAN, _ROUTER)
        for family in self.families:
            gateway, length = _host(_FAR, family, _ROUTER)
            links.add_address(narrow, gateway, length)
            links.add_address(far.uplink, far.addresses[family], length)
            links.add_route(far, links.default_route(family), far.uplink, gateway)
            subnet = ipaddress.ip_interface(f"{gateway}/{length}").network
            for node in self.nodes:
                links.add_route(node, subnet, node.uplink, gateways[family])
        return far


def _host(subnet: dict[int, tuple[str, int]], family: int, number: int) -> tuple[Address, int]:
    start, length = subnet[family]
    return ipaddress.ip_address(f"{start}{number}"), length
