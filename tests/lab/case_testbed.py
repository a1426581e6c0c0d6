"""A testbed for cases: one node with any addresses, its agent, and four peers with any others.

::

    clients  ──┐              ┌── outside   clients outside of the node
               ├── the node ──┤
    backends ──┘         eth0 └── remote    remote backends, and all other addresses

A client and a backend are never in one peer: the backend would answer an address of its own peer
directly, without the node. Cases with the same node and flags share a testbed; only the manifests
and the addresses change. Untranslated packets leave by the default route to ``remote``.
"""

from __future__ import annotations

import ipaddress
import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from bpfsvc.devtools.lab import links, sandbox
from bpfsvc.devtools.lab import objects as kubernetes
from bpfsvc.devtools.lab.links import Address, End
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.objects import Object
from bpfsvc.devtools.lab.topology import Lab

_NODE = {4: ipaddress.ip_address("169.254.1.1"), 6: ipaddress.ip_address("fe80::1")}
"""The gateways of every peer. The node does not have them: the neighbour entries are permanent."""

_serial = itertools.count(1)


class AgentSetup(NamedTuple):
    """The settings of an agent from its start; cases with the same ones share a testbed."""

    name: str
    addresses: tuple[str, ...]
    cluster_cidrs: tuple[str, ...]
    options: tuple[str, ...]
    bridge: str

    @classmethod
    def of(cls, case: dict[str, Any]) -> AgentSetup:
        """Return the settings for a case of the sample."""
        given = case.get("options") or {}
        detect = given.get("detect_local", {})
        options = [
            "--nodeport-addresses",
            ",".join(case["nodeport_addresses"]) or "0.0.0.0/0,::/0",
        ]
        if not given.get("localhost_nodeports", True):
            options.append("--no-localhost-nodeports")
        if given.get("masquerade_all"):
            options.append("--masquerade-all")
        bridge = ""
        if detect.get("mode") == "BridgeInterface":
            bridge = detect["interface"]
            options += ["--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", bridge]
        cidrs = case["cluster_cidr"] or []
        return cls(
            case["node"]["name"],
            tuple(case["node"]["ips"]),
            (cidrs,) if isinstance(cidrs, str) else tuple(cidrs),
            tuple(options),
            bridge,
        )


class Peer(Namespace):
    """A namespace beside the node, with one interface and as many addresses as are needed."""

    def __init__(self, name: str, number: int, *, prefix: str) -> None:
        super().__init__(name, prefix=prefix)
        # The node's gateway to the peer.
        self.gateways = {version: address + number for version, address in _NODE.items()}
        self.uplink: End
        self.towards: End  # the node's interface
        self._held: set[Address] = set()
        self._served: set[int] = set()
        self.sysctl("net.ipv6.conf.default.accept_redirects", 0)

    def connect(self, uplink: End, towards: End) -> None:
        """Make the node the default gateway."""
        self.uplink, self.towards = uplink, towards
        for version, node in _NODE.items():
            # One address stays: the kernel removes the routes together with the last IPv4 address.
            links.add_address(uplink, self.gateways[version])
            links.add_neighbour(uplink, node, towards.mac)
            links.add_neighbour(towards, self.gateways[version], uplink.mac)
            links.add_route(self, links.default_route(version), uplink, node)

    def add_address(self, text: str) -> None:
        """Add an address, and a route to it on the node."""
        address = ipaddress.ip_address(text)
        if address not in self._held:
            links.add_address(self.uplink, address)
            links.await_address(self.uplink, address)
            self._held.add(address)
        # The last peer that adds an address gets the packets to it.
        via = self.gateways[address.version]
        links.add_route(self.towards.namespace, links.host_route(address), self.towards, via)

    def serve_port(self, port: int) -> None:
        """Start an echo server at a port of all addresses."""
        if port not in self._served:
            self.serve(port)
            self._served.add(port)

    def clear(self) -> None:
        """Remove all addresses. The routes stay until another peer adds the address."""
        for address in self._held:
            self.netlink.addr(
                "del",
                index=self.uplink.index,
                address=str(address),
                prefixlen=address.max_prefixlen,
            )
        self._held.clear()


class CaseTestbed(Lab):
    """The node of some cases and its peers; ``LabCluster`` runs its agent."""

    def __init__(self, setup: AgentSetup) -> None:
        super().__init__()
        self.setup = setup
        networks = [ipaddress.ip_network(text) for text in setup.cluster_cidrs]
        self.cluster_cidrs = {network.version: network for network in networks}
        self.node: LabNode
        self.clients: Peer
        self.backends: Peer
        self.outside: Peer
        self.remote: Peer

    @property
    def peers(self) -> Sequence[Peer]:
        """All peers of the node."""
        return (self.clients, self.backends, self.outside, self.remote)

    def _build(self) -> None:
        name = f"case{next(_serial)}"
        for tree in (sandbox.CGROUP_ROOT / name, sandbox.BPF_ROOT / name):
            tree.mkdir()
            self._stack.callback(tree.rmdir)
        prefix = f"{name}-"
        self.node = self._open(
            LabNode(
                1,
                prefix=prefix,
                families=(),
                holds_pods=False,
                cgroup=sandbox.CGROUP_ROOT / name / "node",
                pin_root=sandbox.BPF_ROOT / name / "node",
            )
        )
        self.node.name = self.setup.name
        self.nodes.append(self.node)
        for scope in ("all", "default"):
            self.node.sysctl(f"net.ipv4.conf.{scope}.send_redirects", 0)
        self.clients, self.backends, self.outside, self.remote = (
            self._open(Peer(each, number, prefix=prefix))
            for number, each in enumerate(("clients", "backends", "outside", "remote"), start=1)
        )
        self._attach_pods()
        self._attach_world(self._open(Namespace("switch", prefix=prefix)))

    def _attach_pods(self) -> None:
        shared = self.setup.bridge and links.bridge(self.node, self.setup.bridge)
        for peer in (self.clients, self.backends):
            host_end, uplink = links.cable(self.node, f"veth-{peer.name}", peer, "eth0")
            if shared:
                host_end.set(master=shared.index)
            peer.connect(uplink, shared or host_end)

    def _attach_world(self, switch: Namespace) -> None:
        lan = links.bridge(switch, "br0")
        port, eth0 = links.cable(switch, "node", self.node, "eth0")
        port.set(master=lan.index)
        for text in self.setup.addresses:
            links.add_address(eth0, ipaddress.ip_address(text))
        for peer in (self.outside, self.remote):
            port, uplink = links.cable(switch, peer.name, peer, "eth0")
            port.set(master=lan.index)
            peer.connect(uplink, eth0)
        for version, gateway in self.remote.gateways.items():
            links.add_route(self.node, links.default_route(version), eth0, gateway)
        for text in self.setup.addresses:
            links.await_address(eth0, ipaddress.ip_address(text))


def objects(case: dict[str, Any]) -> list[Object]:
    """Return the objects of a case as the API server writes them."""
    given = case["node"]
    node = kubernetes.node(given["name"], given["primary"].values(), given["zone"] or "")
    made: list[Object] = [node]
    if case["service_cidrs"]:
        made.append(kubernetes.service_cidr(*case["service_cidrs"]))
    made += [{"apiVersion": "v1", "kind": "Service"} | raw for raw in case["services"]]
    for raw in case["endpointslices"]:
        # In the sample, conditions are numbers.
        written = json.loads(json.dumps(raw))
        for point in written["endpoints"]:
            given = point.get("conditions") or {}
            point["conditions"] = {name: bool(is_set) for name, is_set in given.items()}
        made.append({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"} | written)
    return made
