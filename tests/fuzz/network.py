"""The network of the node in a history: interfaces, routes and neighbours that stay as they are.

::

    three pods ── pod0, pod1, pod2 ┤ the node ├ eth0 ── a router: all others

Programs ask the kernel for routes here. Nothing is ever sent.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from bpfsvc.base.address import pack
from bpfsvc.base.fast_path import LEVELS, STACK, FastPathLevel
from bpfsvc.datapath.attach import xdp
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.namespace import Namespace
from tests.fuzz.world import CLIENTS, ENDPOINTS, LOCAL, NODE_ADDRESS
from tests.packets.node import Node

_MAC = "02:00:00:00:00:02"
"""Of all interfaces of the node: frames are made for it (``tests/fuzz/frames.py``)."""
_NEIGHBOURS = {
    "eth0": "02:00:00:00:01:00",
    **{f"pod{number}": f"02:00:00:00:01:1{number}" for number in range(3)},
}
_ROUTER = {4: "192.168.50.1", 6: "fd50::1"}
_NETWORK_BITS = {4: 24, 6: 64}


class Paths(NamedTuple):
    """What may send packets on in place of the kernel's stack: the fast path, XDP."""

    level: FastPathLevel = STACK
    xdp: bool = False

    def __str__(self) -> str:
        return f"{self.level}, XDP" if self.xdp else self.level


ALL_PATHS = [Paths(level, xdp) for level in reversed(LEVELS) for xdp in (False, True)]


class Network:
    """The interfaces of a node. Programs have to be run in their namespace."""

    def __init__(self, node: Node, namespace: Namespace, there: Namespace) -> None:
        self._node, self._namespace = node, namespace
        self._ends = {name: links.cable(namespace, name, there, name)[0] for name in _NEIGHBOURS}
        for end in self._ends.values():
            end.set(address=_MAC)
        self.uplink = self._ends["eth0"].index
        self._by_address: dict[bytes, int] = {}
        for family in (4, 6):
            self._connect(namespace, family)
        self._macs = {
            self._ends[name].index: _bytes(mac) + _bytes(_MAC) for name, mac in _NEIGHBOURS.items()
        }

    def _connect(self, namespace: Namespace, family: int) -> None:
        uplink, router = self._ends["eth0"], ipaddress.ip_address(_ROUTER[family])
        own = ipaddress.ip_address(NODE_ADDRESS[family])
        links.add_address(uplink, own, _NETWORK_BITS[family])
        links.add_neighbour(uplink, router, _NEIGHBOURS["eth0"])
        links.add_route(namespace, links.default_route(family), uplink, router)
        for client in CLIENTS[family]:
            address = ipaddress.ip_address(client)
            if address in ipaddress.ip_network((own, _NETWORK_BITS[family]), strict=False):
                links.add_neighbour(uplink, address, _NEIGHBOURS["eth0"])
        for number, text in enumerate(pods(family)):
            pod, address = self._ends[f"pod{number}"], ipaddress.ip_address(text)
            links.add_route(namespace, links.host_route(address), pod)
            links.add_neighbour(pod, address, _NEIGHBOURS[pod.name])
            self._by_address[pack(text)] = pod.index

    def entered(self) -> AbstractContextManager[None]:
        """Be in the namespace for the duration of the context."""
        return self._namespace.entered()

    @property
    def interfaces(self) -> list[int]:
        """The indices of all interfaces."""
        return [end.index for end in self._ends.values()]

    def interface_to(self, address: bytes) -> int:
        """Return the index of the interface towards a packed address."""
        return self._by_address.get(address, self.uplink)

    def link_header(self, interface: int) -> bytes:
        """Return both hardware addresses of a frame that leaves by an interface."""
        return self._macs[interface]

    def write(self) -> None:
        """Write what the programs know of the interfaces; forget the routes that they keep."""
        pinned = self._node.pinned
        record = pinned.layout.maps["interfaces"].value
        addresses = {f"v{family}": pack(text) for family, text in NODE_ADDRESS.items()}
        for name, end in self._ends.items():
            entry = record.pack({**addresses, "shortcut": True, "peer": name != "eth0"})
            pinned.map("interfaces").update(struct.pack("=I", end.index), entry)
        cached = pinned.map("cached_routes")
        nothing = bytes(len(cached.lookup(bytes(4)) or b""))
        cached.update_many(
            (struct.pack("=I", place), nothing) for place in range(cached.max_entries)
        )

    def use_xdp(self, wanted: bool) -> None:
        """Have XDP send packets on, or not."""
        pinned = self._node.pinned
        uplink = pinned.layout.maps["uplinks"].value.pack(
            {"ifindex": self.uplink, "mac": _bytes(_MAC), "takes": 1}
        )
        pinned.map("uplinks").replace({struct.pack("=I", self.uplink): uplink} if wanted else {})

    def attach(self) -> None:
        """Attach XDP to the uplink: a driver has a queue for it only then."""
        root = self._node.root
        root.links.mkdir(exist_ok=True)
        with self.entered():
            xdp.attach(root, self.uplink, self._node.pinned.program("xdp"))

    def detach(self) -> None:
        """Detach XDP."""
        with self.entered():
            xdp.detach(self._node.root, self.uplink)


def pods(family: int) -> list[str]:
    """Return the addresses of the pods of the node, as in the world of a history."""
    return sorted({*CLIENTS[family][:LOCAL], *ENDPOINTS[family][:LOCAL]})


@contextmanager
def network(node: Node, name: str) -> Iterator[Network]:
    """Make the network of a node in a namespace of this name."""
    here, there = Namespace(name), Namespace(f"{name}-far")
    try:
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            here.sysctl(key, 1)
        made = Network(node, here, there)
        made.attach()
        yield made
        made.detach()
    finally:
        here.close()
        there.close()


def _bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
