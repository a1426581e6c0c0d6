"""A node with routes: what the fast path asks the kernel, and what it writes into frames.

::

    client ── pod0 ┐          ┌ eth0 ── the LAN: strangers, and the node where `backend` is
                   ├ the node ┤
    near ──── pod1 ┘          └ tun0 ── an interface that takes no part

Only the programs run here, on frames that are handed to them; nothing is ever sent.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from scapy.layers.inet import IP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.address import pack
from bpfsvc.datapath import bpf
from bpfsvc.lab import links
from bpfsvc.lab.links import End
from bpfsvc.lab.namespace import Namespace
from tests.packets.node import REDIRECT, UNSPEC, Node, same, tcp
from tests.packets.scene import Scene, bare

_GSO_SIZE = 176
"""Where ``struct __sk_buff`` has it."""

MTU = 1500
WEB_PORT = 30080


class Crossing:
    """The node's interfaces, and its neighbours, all of them known."""

    def __init__(self, node: Node, here: Namespace, there: Namespace) -> None:
        self.node = node
        self.here = here
        self.ends: dict[str, End] = {}
        self.far: dict[str, str] = {}
        for name in ("pod0", "pod1", "eth0", "tun0"):
            self.ends[name], far = links.cable(here, name, there, name, MTU)
            self.far[name] = far.mac
        for version in (4, 6):
            links.add_address(
                self.ends["eth0"],
                ipaddress.ip_address(("192.168.50.11", "fd50::11")[version == 6]),
                (24, 64)[version == 6],
            )

    def put(self, name: str, *, shortcut: bool = True, peer: bool | None = None) -> None:
        """Give an interface its row; one to a pod is entered straight."""
        end = self.ends[name]
        record = self.node.pinned.layout.maps["interfaces"].value
        row = record.pack(
            {
                "v4": pack("192.168.50.11"),
                "v6": pack("fd50::11"),
                "shortcut": shortcut,
                "peer": name.startswith("pod") if peer is None else peer,
            }
        )
        self.node.pinned.map("interfaces").update(struct.pack("=I", end.index), row)

    def lead(self, to: str, name: str, via: str | None = None) -> None:
        """Let a place be reached by an interface, through a router or as a neighbour."""
        address = ipaddress.ip_address(bare(to))
        gateway = ipaddress.ip_address(via) if via else None
        links.add_route(self.here, links.host_route(address), self.ends[name], gateway)
        links.add_neighbour(self.ends[name], gateway or address, self.far[name])

    def forget_neighbour(self, to: str, name: str) -> None:
        """Let the hardware address of a neighbour be unknown."""
        self.here.netlink.neigh("del", ifindex=self.ends[name].index, dst=bare(to))

    def run(
        self, hook: str, name: str, packet: Packet, *, gso: int = 0, to: str = ""
    ) -> tuple[int, Packet]:
        """Give a packet that comes or leaves by an interface to a hook: verdict, frame.

        ``gso``: the size of the segments that it is to be cut into. ``to``: the hardware address it
        is sent to, by default the interface's own.
        """
        context = bytearray(_GSO_SIZE + 4)
        struct.pack_into("=I", context, 40, self.ends[name].index)
        struct.pack_into("=I", context, _GSO_SIZE, gso)
        frame = Ether(src=self.far[name], dst=to or self.ends[name].mac) / packet
        with self.here.entered():
            verdict, data = bpf.program_test_run(
                self.node.pinned.program(hook), bytes(frame), context=bytes(context)
            )
        return verdict, Ether(data)

    def stack(self, name: str, packet: Packet, gso: int = 0) -> Packet:
        """Give a packet to ingress; it must go on by the stack, its hop limit as it was."""
        verdict, frame = self.run("ingress", name, packet, gso=gso)
        assert verdict == UNSPEC
        assert limit(frame.payload) == limit(packet)
        assert frame.src == self.far[name]
        return frame.payload

    def neighbour(self, name: str, packet: Packet, gso: int = 0) -> Packet:
        """The same; it must be sent on to a neighbour, so its hardware addresses do not matter."""
        verdict, frame = self.run("ingress", name, packet, gso=gso)
        assert verdict == REDIRECT
        assert (frame.src, frame.dst) == (self.far[name], self.ends[name].mac)
        return frame.payload

    def straight(self, name: str, packet: Packet, to: str, gso: int = 0) -> Packet:
        """The same; it must go straight to the far end of ``to``, in a frame for it."""
        verdict, frame = self.run("ingress", name, packet, gso=gso)
        assert verdict == REDIRECT
        assert (frame.src, frame.dst) == (self.ends[to].mac, self.far[to])
        return frame.payload

    def leaves(self, name: str, packet: Packet) -> Packet:
        """Give a packet to egress; it must pass."""
        verdict, frame = self.run("egress", name, packet)
        assert verdict == UNSPEC
        return frame.payload


@contextmanager
def crossing(node: Node) -> Iterator[Crossing]:
    """Build one."""
    here, there = Namespace("crossing"), Namespace("crossing-far")
    try:
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            here.sysctl(key, 1)
        yield Crossing(node, here, there)
    finally:
        here.close()
        there.close()


def furnish(at: Crossing, scene: Scene) -> None:
    """Put the people of a scene where the picture shows them, and turn the fast path on."""
    router = "192.168.50.12" if scene.family == 4 else "fd50::12"
    for name in ("pod0", "pod1", "eth0"):
        at.put(name)
    at.put("tun0", shortcut=False)
    at.lead(scene.client, "pod0")
    at.lead(scene.other_backend, "pod1")
    at.lead(scene.backend, "eth0", router)
    at.lead(scene.stranger, "eth0")
    at.node.settings(fast_path=1)


def limit(packet: Packet) -> int:
    """Give the time to live or hop limit."""
    return int(packet.ttl if isinstance(packet, IP) else packet.hlim)


def hop(packet: Packet, left: int | None = None) -> Packet:
    """Give a packet as it is after one more hop, or with so many hops left."""
    packet = packet.copy()
    field = "ttl" if isinstance(packet, IP) else "hlim"
    setattr(packet, field, limit(packet) - 1 if left is None else left)
    return packet


def forwarded(got: Packet, wanted: Packet) -> bool:
    """Whether a packet is what was wanted, to the last byte, a hop later."""
    return same(got, hop(wanted))


def taken(at: Crossing) -> int:
    """Count the packets that took the fast path."""
    return at.node.counter("fast_forwarded")


def open_far(at: Crossing, scene: Scene) -> None:
    """Let the client establish a connection to the backend on the other node, all of it fast."""
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(at.node, [backend])
    sent = at.neighbour("pod0", scene.opening(client, vip))
    assert forwarded(sent, scene.opening(client, backend))
    assert same(at.leaves("eth0", sent), sent)
    back = at.neighbour("eth0", scene.answer(backend, client))
    assert forwarded(back, scene.answer(backend, client))
    assert same(at.leaves("pod0", back), hop(scene.answer(vip, client)))
    if scene.protocol == "TCP":
        assert forwarded(at.neighbour("pod0", tcp(client, vip, "A")), tcp(client, backend, "A"))


def open_near(at: Crossing, scene: Scene) -> None:
    """Let the client establish a connection to the backend on this node."""
    client, vip, near = scene.client, scene.vip, scene.other_backend
    scene.service(at.node, [near])
    sent = at.straight("pod0", scene.opening(client, vip), to="pod1")
    assert forwarded(sent, scene.opening(client, near))
    back = at.neighbour("pod1", scene.answer(near, client))
    assert same(at.leaves("pod0", back), hop(scene.answer(vip, client)))
    if scene.protocol == "TCP":
        at.straight("pod0", tcp(client, vip, "A"), to="pod1")


def open_masqueraded(at: Crossing, scene: Scene, backend: str, by: str) -> str:
    """Let the stranger establish one by a NodePort; give the node's end as ``backend`` sees it.

    ``by`` is the interface that leads to the backend.
    """
    stranger, entry = scene.stranger, scene.node_place(WEB_PORT)
    scene.service(at.node, [backend], node_port=WEB_PORT, masquerade=True)
    sent = at.neighbour("eth0", scene.opening(stranger, entry))
    assert forwarded(sent, scene.opening(stranger, backend))
    out = at.leaves(by, sent)
    seen = scene.at(out.src, out.payload.sport)
    assert same(out, hop(scene.opening(seen, backend)))
    back = at.neighbour(by, scene.answer(backend, seen))
    assert forwarded(back, scene.answer(backend, stranger))
    assert same(at.leaves("eth0", back), hop(scene.answer(entry, stranger)))
    if scene.protocol == "TCP":
        sent = at.neighbour("eth0", tcp(stranger, entry, "A"))
        assert same(at.leaves(by, sent), hop(tcp(seen, backend, "A")))
    return seen
