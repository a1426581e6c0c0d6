"""A node with routes: what the fast path asks the kernel, and what it writes into frames.

::

    client ── pod0 ┐          ┌ eth0 ── the LAN: external clients, and the node of `backend`
                   ├ the node ┤
    near ──── pod1 ┘          └ tun0 ── an interface without the fast path

Only the programs run here, on frames that the tests make; nothing is ever sent.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.base.address import pack
from bpfsvc.datapath import syscall
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.links import End
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.services.entries import Policies, Policy
from tests.packets.node import REDIRECT, UNSPEC, Node
from tests.packets.packet import same
from tests.packets.peers import Peers, address_of

_INGRESS, _GSO_SIZE = 36, 176
"""Offsets of ``ingress_ifindex`` and ``gso_size`` in ``struct __sk_buff``."""

MTU = 1500
WEB_PORT = 30080


class FastPathTestbed:
    """The node's interfaces and its neighbours; all neighbours are resolved."""

    def __init__(self, node: Node, here: Namespace, there: Namespace) -> None:
        self.node = node
        self.here, self.there = here, there
        self.ends: dict[str, End] = {}
        self.far: dict[str, str] = {}
        self._routed: dict[str, tuple[str, str | None]] = {}
        for name in ("pod0", "pod1", "eth0", "tun0"):
            self.ends[name], far = links.cable(here, name, there, name, MTU)
            self.far[name] = far.mac
        for version in (4, 6):
            links.add_address(
                self.ends["eth0"],
                ipaddress.ip_address(("192.168.50.11", "fd50::11")[version == 6]),
                (24, 64)[version == 6],
            )

    def write_interface(
        self,
        name: str,
        *,
        shortcut: bool = True,
        peer: bool | None = None,
        bridge: int = 0,
        forget: bool = True,
    ) -> None:
        """Write the entry of an interface; packets go directly into the pod behind a ``peer``.

        ``bridge``: the index of the bridge that it is a port of. ``forget``: the routes, too.
        """
        end = self.ends[name]
        record = self.node.pinned.layout.maps["interfaces"].value
        entry = record.pack(
            {
                "v4": pack("192.168.50.11"),
                "v6": pack("fd50::11"),
                "shortcut": shortcut,
                "peer": name.startswith("pod") if peer is None else peer,
                "bridge": bridge,
            }
        )
        self.node.pinned.map("interfaces").update(struct.pack("=I", end.index), entry)
        if forget:
            self.forget_cached()

    def route(self, to: str, name: str, via: str | None = None) -> None:
        """Route an address by an interface, through a router or as a neighbour."""
        if self._routed.get(address_of(to)) != (name, via):
            address = ipaddress.ip_address(address_of(to))
            gateway = ipaddress.ip_address(via) if via else None
            links.add_route(self.here, links.host_route(address), self.ends[name], gateway)
            links.add_neighbour(self.ends[name], gateway or address, self.far[name])
            self._routed[address_of(to)] = name, via
            self.forget_cached()

    def unroute(self, to: str) -> None:
        """Remove the route to an address; the programs may remember it."""
        self._routed.pop(address_of(to), None)
        links.delete_route(self.here, links.host_route(ipaddress.ip_address(address_of(to))))

    def forget_neighbour(self, to: str, name: str) -> None:
        """Remove the neighbour entry of an address."""
        self.here.netlink.neigh("del", ifindex=self.ends[name].index, dst=address_of(to))
        self.forget_routes()

    def forget_cached(self) -> None:
        """Forget what the programs have asked the kernel, as they do within a third of a second."""
        cached = self.node.pinned.map("cached_routes")
        value = bytes(len(cached.lookup(bytes(4)) or b""))
        cached.update_many(
            [(struct.pack("=I", number), value) for number in range(cached.max_entries)]
        )

    def forget_routes(self) -> None:
        """The same; and have route() set all routes anew: some were changed by other means."""
        self._routed.clear()
        self.forget_cached()

    def outdate_routes(self, asked: int) -> None:
        """Have the programs ask the kernel again, as if they had asked so often until now."""
        cached = self.node.pinned.map("cached_routes")
        record = self.node.pinned.layout.maps["cached_routes"].value
        for key, cpus in self._cached_routes():
            if not any(entry["mtu"] for entry in cpus):
                continue
            for entry in cpus:
                entry |= {"asked": asked, "tick": int(entry["tick"]) - 2 & 0xFFFF}
            cached.update(key, b"".join(map(record.pack, cpus)))

    def routes_asked(self) -> int:
        """Return how often the programs have asked the kernel for the routes that they keep."""
        return sum(int(entry["asked"]) for _, cpus in self._cached_routes() for entry in cpus)

    def _cached_routes(self) -> Iterator[tuple[bytes, list[dict[str, Any]]]]:
        """Yield the key of each place, and its entries, one for each CPU."""
        cached = self.node.pinned.map("cached_routes")
        record, size = self.node.pinned.layout.maps["cached_routes"].value, cached.cpu_value_size
        for key, value in cached.items():
            yield key, [record.unpack(value[at : at + size]) for at in range(0, len(value), size)]

    def run(
        self,
        hook: str,
        name: str,
        packet: Packet,
        *,
        gso: int = 0,
        to: str = "",
        came_by: str = "",
    ) -> tuple[int, Packet]:
        """Run a hook on a packet of an interface; return the verdict and the frame.

        ``gso``: the size of the segments that it is to be cut into. ``to``: the hardware address it
        is sent to, by default the interface's own. ``came_by``: the interface where a packet that
        leaves has come from; none if a socket of the node sent it.
        """
        context = bytearray(_GSO_SIZE + 4)
        if came_by:
            struct.pack_into("=I", context, _INGRESS, self.ends[came_by].index)
        struct.pack_into("=I", context, 40, self.ends[name].index)
        struct.pack_into("=I", context, _GSO_SIZE, gso)
        frame = Ether(src=self.far[name], dst=to or self.ends[name].mac) / packet
        with self.here.entered():
            verdict, data = syscall.program_test_run(
                self.node.pinned.program(hook), bytes(frame), context=bytes(context)
            )
        left = Ether(data)
        assert left.type == frame.type
        return verdict, left

    def to_stack(self, name: str, packet: Packet, gso: int = 0) -> Packet:
        """Run ingress; assert that the stack gets the packet with an unchanged hop limit."""
        verdict, frame = self.run("ingress", name, packet, gso=gso)
        assert verdict == UNSPEC
        assert limit(frame.payload) == limit(packet)
        assert frame.src == self.far[name]
        return frame.payload

    def to_neighbour(self, name: str, packet: Packet, gso: int = 0) -> Packet:
        """Run ingress; assert that the kernel sends the packet to a neighbour."""
        verdict, frame = self.run("ingress", name, packet, gso=gso)
        assert verdict == REDIRECT
        assert (frame.src, frame.dst) == (self.far[name], self.ends[name].mac)
        return frame.payload

    def to_peer(self, name: str, packet: Packet, to: str, gso: int = 0) -> Packet:
        """Run ingress; assert that the packet goes directly into the pod behind ``to``."""
        verdict, frame = self.run("ingress", name, packet, gso=gso)
        assert verdict == REDIRECT
        assert (frame.src, frame.dst) == (self.ends[to].mac, self.far[to])
        return frame.payload

    def egress(self, name: str, packet: Packet, came_by: str = "") -> Packet:
        """Run egress; assert that the packet passes."""
        verdict, frame = self.run("egress", name, packet, came_by=came_by)
        assert verdict == UNSPEC
        return frame.payload


@contextmanager
def fast_path(node: Node) -> Iterator[FastPathTestbed]:
    """Build the testbed in two namespaces."""
    here, there = Namespace("crossing"), Namespace("crossing-far")
    try:
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            here.sysctl(key, 1)
        yield FastPathTestbed(node, here, there)
    finally:
        here.close()
        there.close()


def prepare(testbed: FastPathTestbed, peers: Peers) -> None:
    """Route the peers as the picture shows, and turn the fast path on.

    Destinations are known, as after the agent has written all: not every packet is looked up.
    """
    router = "192.168.50.12" if peers.family == 4 else "fd50::12"
    for name in ("pod0", "pod1", "eth0"):
        testbed.write_interface(name, forget=False)
    testbed.write_interface("tun0", shortcut=False, forget=False)
    testbed.route(peers.client, "pod0")
    testbed.route(peers.other_backend, "pod1")
    testbed.route(peers.backend, "eth0", router)
    testbed.route(peers.external, "eth0")
    testbed.forget_cached()
    testbed.node.settings(fast_path=1)
    testbed.node.service_networks()


def limit(packet: Packet) -> int:
    """Return the time to live or hop limit."""
    return int(packet.ttl if isinstance(packet, IP) else packet.hlim)


def hop(packet: Packet, left: int | None = None) -> Packet:
    """Return a packet as it is after one more hop, or with so many hops left."""
    packet = packet.copy()
    field = "ttl" if isinstance(packet, IP) else "hlim"
    setattr(packet, field, limit(packet) - 1 if left is None else left)
    return packet


def forwarded(got: Packet, wanted: Packet) -> bool:
    """True if a packet equals the wanted one after one more hop, to the last byte."""
    return same(got, hop(wanted))


def fast_packets(testbed: FastPathTestbed) -> int:
    """Count the packets that took the fast path."""
    return testbed.node.counter("fast_forwarded")


def open_far(testbed: FastPathTestbed, peers: Peers) -> None:
    """Connect the client to the backend on the other node, all of it by the fast path."""
    client, vip, backend = peers.served(testbed.node)
    sent = testbed.to_neighbour("pod0", peers.opening(client, vip))
    assert forwarded(sent, peers.opening(client, backend))
    assert same(testbed.egress("eth0", sent), sent)
    back = testbed.to_neighbour("eth0", peers.answer(backend, client))
    assert forwarded(back, peers.answer(backend, client))
    assert same(testbed.egress("pod0", back), hop(peers.answer(vip, client)))
    comes, goes = peers.proof(client, vip, backend, client)
    assert forwarded(testbed.to_neighbour("pod0", comes), goes)


def open_near(testbed: FastPathTestbed, peers: Peers) -> None:
    """Connect the client to the backend on this node."""
    client, vip, near = peers.client, peers.vip, peers.other_backend
    peers.service(testbed.node, [near])
    sent = testbed.to_peer("pod0", peers.opening(client, vip), to="pod1")
    assert forwarded(sent, peers.opening(client, near))
    back = testbed.to_neighbour("pod1", peers.answer(near, client))
    assert same(testbed.egress("pod0", back), hop(peers.answer(vip, client)))
    testbed.to_peer("pod0", peers.proof(client, vip, near, client)[0], to="pod1")


def open_masqueraded(testbed: FastPathTestbed, peers: Peers, backend: str, by: str) -> str:
    """Connect the pod by a NodePort; return the node's end as ``backend`` sees it.

    ``by`` is the interface towards the backend.
    """
    client, entry = peers.client, peers.on_node(WEB_PORT)
    policy = Policy(0, 1, masquerade=True, reject=False)
    everyone = Policies(policy, policy, policy)
    peers.service(testbed.node, [backend], node_port=WEB_PORT, policies=everyone)
    sent = testbed.to_neighbour("pod0", peers.opening(client, entry))
    assert forwarded(sent, peers.opening(client, backend))
    out = testbed.egress(by, sent)
    seen = peers.with_port(out.src, out.payload.sport)
    assert same(out, hop(peers.opening(seen, backend)))
    back = testbed.to_neighbour(by, peers.answer(backend, seen))
    assert forwarded(back, peers.answer(backend, client))
    assert same(testbed.egress("pod0", back), hop(peers.answer(entry, client)))
    comes, goes = peers.proof(client, entry, backend, seen)
    assert same(testbed.egress(by, testbed.to_neighbour("pod0", comes)), hop(goes))
    return seen
