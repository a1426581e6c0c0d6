"""Frames on real interfaces: they pass two with programs, or have a tag that the kernel takes off.

::

    far ── eth0 ─┬─ the node ── cali0 ── eth0 of the pod
           vrrp ─┘
             a macvlan over eth0: what is sent to its hardware address passes both
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Packet

from bpfsvc.base.address import pack
from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.datapath.attach import interfaces
from bpfsvc.datapath.netlink.hooks import Hook
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.capture import Capture
from bpfsvc.devtools.lab.links import End
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait
from tests.packets.node import Node
from tests.packets.peers import ALL_PEERS, TCP_PEERS, UDP_PEERS, Peers, address_of
from tests.packets.replaced import replaced_programs

SYSCTLS = ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding")
DATAGRAMS = [*TCP_PEERS, *UDP_PEERS]


class Stacked:
    """The node, and who sends frames to it."""

    def __init__(self, node: Node, stack: ExitStack) -> None:
        self.node = node
        made = [Namespace(f"stacked{name}") for name in ("", "-far", "-pod")]
        for namespace in made:
            stack.callback(namespace.close)
        here, self._outside, self._pod = made
        for key in SYSCTLS:
            here.sysctl(key, 1)
        self._far, self.eth0 = links.cable(self._outside, "far", here, "eth0")
        cali0, inside = links.cable(here, "cali0", self._pod, "eth0")
        here.netlink.link(
            "add", ifname="vrrp", kind="macvlan", link=self.eth0.index, macvlan_mode="bridge"
        )
        self.vrrp = links.find(here, "vrrp")
        self.vrrp.set(state="up")
        for text in ("192.168.50.11", "fd50::11"):
            links.add_address(self.eth0, ipaddress.ip_address(text))
        for backend in {address_of(peers.backend) for peers in ALL_PEERS}:
            address = ipaddress.ip_address(backend)
            links.add_route(here, links.host_route(address), cali0)
            links.add_neighbour(cali0, address, inside.mac)
        for backend in {address_of(peers.other_backend) for peers in ALL_PEERS}:
            address = ipaddress.ip_address(backend)
            links.add_route(here, links.host_route(address), self.vrrp)
            links.add_neighbour(self.vrrp, address, self._far.mac)
        for end in (self._far, self.eth0, self.vrrp, cali0):
            end.await_carrier()
        with here.entered():
            attacher = interfaces.Attacher(node.root, "clsact", 1)
            for end in (self.eth0, self.vrrp, cali0):
                for hook in Hook:
                    attacher.attach(end.index, hook, node.pinned.program(str(hook)), "test")

    def arrive(self, frames: Sequence[Packet], like: Packet) -> list[Packet]:
        """Send frames; return the packets of the family of ``like`` that reach the pod."""
        return self._received(frames, like, self._pod, "eth0")

    def leave(self, frames: Sequence[Packet], like: Packet, *, lost: int = 0) -> list[Packet]:
        """The same of those that leave by the macvlan, and so by both interfaces."""
        return self._received(frames, like, self._outside, "far", lost)

    def _received(
        self,
        frames: Sequence[Packet],
        like: Packet,
        where: Namespace,
        interface: str,
        lost: int = 0,
    ) -> list[Packet]:
        copies: list[Packet] = []
        with (
            Capture(where, interface) as seen,
            self._outside.socket(socket.AF_PACKET, socket.SOCK_RAW) as made,
        ):
            made.bind(("far", 0))
            for frame in frames:
                made.send(bytes(frame))

            def all_came() -> bool:
                nonlocal copies
                copies = packets([frame.data for frame in seen.frames()], like)
                return len(copies) >= len(frames) - lost

            wait(all_came, "all packets arrive")
        return copies

    def frame(self, to: End, packet: Packet) -> Packet:
        """Make a frame to one of the node's interfaces."""
        return Ether(src=self._far.mac, dst=to.mac) / packet


def packets(frames: Sequence[bytes], like: Packet) -> list[Packet]:
    """Return the packets of frames that are to the same address."""
    family = IP if isinstance(like, IP) else IPv6
    copies = (Ether(data).payload for data in frames)
    return [entry for entry in copies if isinstance(entry, family) and entry.dst == like.dst]


@pytest.fixture(scope="module")
def built(loaded: Node) -> Iterator[Stacked]:
    with ExitStack() as stack:
        yield Stacked(loaded, stack)


@pytest.fixture
def stacked(built: Stacked, node: Node) -> Stacked:
    for end in (built.eth0, built.vrrp):
        node.hardware_address(end.mac)
    return built


def forwarded(got: Packet, wanted: Packet) -> bool:
    """True if a packet equals the wanted one after one more hop, to the last byte."""
    wanted = type(wanted)(bytes(wanted))
    if isinstance(wanted, IP):
        wanted.ttl -= 1
        del wanted.chksum
    else:
        wanted.hlim -= 1
    return bytes(got)[: len(bytes(wanted))] == bytes(wanted)


@pytest.mark.parametrize("peers", DATAGRAMS, ids=str)
def test_a_packet_that_passes_two_interfaces_is_translated_once(
    stacked: Stacked, peers: Peers
) -> None:
    """Its source port stays; the first packet is sent again, as by a client that hears nothing."""
    peers.service(stacked.node, [peers.backend])
    sent = stacked.frame(stacked.vrrp, peers.opening(peers.external, peers.vip))
    wanted = peers.opening(peers.external, peers.backend)
    results = stacked.arrive([sent] * 3, wanted)
    assert [forwarded(entry, wanted) for entry in results] == [True] * 3
    assert stacked.node.counter("source_ports_changed") == 0
    assert stacked.node.states() == (2, 0)


@pytest.mark.parametrize("peers", DATAGRAMS, ids=str)
def test_a_masqueraded_packet_that_leaves_by_two_interfaces_is_translated_once(
    stacked: Stacked, peers: Peers
) -> None:
    """Behind the first it looks like a packet of the node from a port that is taken."""
    stacked.node.masquerade_address("192.168.50.11", "fd50::11", index=stacked.vrrp.index)
    peers.service(stacked.node, [peers.other_backend], masquerade=True)
    sent = stacked.frame(stacked.eth0, peers.opening(peers.external, peers.vip))
    results = stacked.leave([sent] * 3, peers.opening(peers.external, peers.other_backend))
    seen = {peers.with_port(entry.src, entry.payload.sport) for entry in results}
    assert len(seen) == 1
    wanted = peers.opening(seen.pop(), peers.other_backend)
    assert [forwarded(result, wanted) for result in results] == [True] * 3
    assert stacked.node.counter("source_ports_changed") == 0
    assert stacked.node.states() == (4, 0)


def lose_masquerade(stacked: Stacked, peers: Peers) -> Packet:
    """Connect a client outside, and remove the entry by which its packets leave.

    Return a packet that is like those that ingress makes of them.
    """
    node = stacked.node
    node.masquerade_address("192.168.50.11", "fd50::11", index=stacked.vrrp.index)
    peers.service(node, [peers.other_backend], masquerade=True)
    like = peers.opening(peers.external, peers.other_backend)
    stacked.leave([stacked.frame(stacked.eth0, peers.opening(peers.external, peers.vip))], like)
    # An established connection trusts that the pair is there, if it was not silent for a second.
    node.set_fields("connections", established=1, seen=time.monotonic_ns() + 60 * NS_PER_SECOND)
    key = node.pinned.layout.maps["connections"].key
    for flow in [flow for flow, _ in node.pinned.map("connections").items()]:
        if key.unpack(flow)["destination"] == pack(address_of(peers.other_backend)):
            node.pinned.map("connections").delete(flow)
    return like


@pytest.mark.parametrize("peers", DATAGRAMS, ids=str)
def test_a_packet_from_an_address_of_the_node_needs_no_masquerade(
    stacked: Stacked, peers: Peers
) -> None:
    """Netfilter has masqueraded it, and by chance it has the mark of what waits for that here."""
    like = lose_masquerade(stacked, peers)
    stacked.node.node_address(address_of(peers.external), nodeports=False)
    sent = stacked.frame(stacked.eth0, peers.data(peers.external, peers.vip))
    (left,) = stacked.leave([sent], like)
    assert forwarded(left, peers.data(peers.external, peers.other_backend))
    assert stacked.node.counter("dropped__unknown_connection") == 0


@pytest.mark.parametrize("peers", DATAGRAMS, ids=str)
def test_a_packet_whose_masquerade_is_lost_between_the_hooks_does_not_leave(
    stacked: Stacked, peers: Peers
) -> None:
    """It would leave with its client's address. The next packet is another connection's."""
    node = stacked.node
    like = lose_masquerade(stacked, peers)
    other = peers.with_port(peers.external, 40001)
    sent = [peers.data(peers.external, peers.vip), peers.opening(other, peers.vip)]
    (left,) = stacked.leave([stacked.frame(stacked.eth0, packet) for packet in sent], like, lost=1)
    seen = peers.with_port(left.src, left.payload.sport)
    assert forwarded(left, peers.opening(seen, peers.other_backend))
    assert left.src == address_of(peers.node_address)
    assert node.counter("dropped__unknown_connection") == 1


@pytest.mark.parametrize("takeover", [False, True], ids=["alone", "beside another build"])
def test_a_packet_that_is_half_translated_belongs_to_the_build_that_is_replaced(
    stacked: Stacked, takeover: bool
) -> None:
    """Its entry may not be copied yet. That build's program stands for any: the packet passes."""
    node, peers = stacked.node, TCP_PEERS[0]
    node.masquerade_address("192.168.50.11", "fd50::11", index=stacked.vrrp.index)
    peers.service(node, [peers.other_backend], masquerade=True)
    like = peers.opening(peers.external, peers.other_backend)
    stacked.leave([stacked.frame(stacked.eth0, peers.opening(peers.external, peers.vip))], like)
    node.set_fields("connections", established=1, seen=time.monotonic_ns() + 60 * NS_PER_SECOND)
    node.pinned.map("connections").delete(
        node.flow("egress", peers.data(peers.external, peers.other_backend))
    )
    # Of a direct flow; what is sent before it has been handled when it leaves.
    last = peers.data(peers.with_port(peers.external, 41000), peers.other_backend)
    sent = [peers.data(peers.external, peers.vip), last]
    with replaced_programs(node):
        node.settings(takeover=node.pinned.layout.constant("TAKEOVER_ATTACHED") * takeover)
        frames = [stacked.frame(stacked.eth0, packet) for packet in sent]
        left = stacked.leave(frames, like, lost=not takeover)
        node.settings()
    wanted = peers.data(peers.external, peers.other_backend)
    assert any(forwarded(packet, wanted) for packet in left) == takeover
    assert node.counter("dropped__unknown_connection") == (not takeover)


@pytest.mark.parametrize("peers", DATAGRAMS, ids=str)
def test_a_direct_connection_with_the_same_ports_still_gets_another_one(
    stacked: Stacked, peers: Peers
) -> None:
    """It comes from outside as what it is, and is not marked."""
    peers.service(stacked.node, [peers.backend])
    wanted = peers.opening(peers.external, peers.backend)
    through = stacked.frame(stacked.vrrp, peers.opening(peers.external, peers.vip))
    assert forwarded(stacked.arrive([through], wanted)[0], wanted)
    (direct,) = stacked.arrive([stacked.frame(stacked.vrrp, wanted)], wanted)
    assert direct.payload.sport != wanted.payload.sport
    assert direct.payload.dport == wanted.payload.dport


@pytest.mark.parametrize("peers", DATAGRAMS, ids=str)
def test_a_frame_with_a_priority_tag_is_translated(stacked: Stacked, peers: Peers) -> None:
    """The kernel keeps the tag beside the frame, and routes it as others."""
    peers.service(stacked.node, [peers.backend])
    packet = peers.opening(peers.external, peers.vip)
    link = Ether(src=stacked.frame(stacked.eth0, packet).src, dst=stacked.eth0.mac)
    wanted = peers.opening(peers.external, peers.backend)
    (copy,) = stacked.arrive([link / Dot1Q(prio=5, vlan=0) / packet], wanted)
    assert forwarded(copy, wanted)
