"""Frames with a priority tag (IEEE 802.1Q, VLAN 0) belong to no VLAN and are translated.

Here the tag is in the bytes of the frame. Most interfaces keep it beside the frame, which test runs
cannot: test_passes.py has that.
"""

from __future__ import annotations

import pytest
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet

from tests.packets.fragment import cut
from tests.packets.icmp_errors import error
from tests.packets.node import REDIRECT, UNSPEC, Node
from tests.packets.packet import LINK
from tests.packets.peers import Peers, address_of
from tests.packets.refusals import is_reset, reset, unreachable

PRIORITY = Dot1Q(prio=5, vlan=0)
OF_PROVIDER = Dot1AD(prio=3, vlan=0)
TAGS = pytest.mark.parametrize("tag", [PRIORITY, OF_PROVIDER], ids=["802.1Q", "802.1ad"])


def through(node: Node, hook: str, packet: Packet, tag: Packet = PRIORITY) -> Packet:
    """Run a hook on a tagged packet; assert that it passes with its tag, and return it."""
    verdict, frame = node.run_frame(hook, bytes(LINK / tag / packet))
    assert verdict == UNSPEC
    head = len(bytes(LINK / tag))
    assert frame[: head - 2] == bytes(LINK / tag / packet)[: head - 2]
    return type(packet)(frame[head:])


def same(got: Packet, wanted: Packet) -> bool:
    return bytes(got) == bytes(wanted)


@TAGS
def test_a_tagged_connection_is_translated_both_ways(node: Node, peers: Peers, tag: Packet) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    external, vip, backend = peers.external, peers.vip, peers.backend
    for send, answer in ((peers.opening, peers.answer), (peers.data, peers.data)):
        routed = through(node, "ingress", send(external, vip), tag)
        assert same(routed, send(external, backend))
        out = through(node, "egress", routed, tag)
        seen = peers.with_port(out.src, out.payload.sport)
        assert out.src == peers.node_address
        assert same(out, send(seen, backend))
        routed = through(node, "ingress", answer(backend, seen), tag)
        assert same(routed, answer(backend, external))
        assert same(through(node, "egress", routed, tag), answer(vip, external))


def test_tagged_and_untagged_packets_are_of_one_connection(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    opened = through(node, "ingress", peers.opening(peers.client, peers.vip))
    assert same(opened, peers.opening(peers.client, peers.backend))
    back = node.forward(peers.answer(peers.backend, peers.client))
    assert same(back, peers.answer(peers.vip, peers.client))


@TAGS
def test_a_frame_of_a_vlan_passes_unchanged(node: Node, peers: Peers, tag: Packet) -> None:
    """It comes again, untagged, by the interface of the VLAN."""
    peers.service(node, [peers.backend])
    tag = tag.copy()
    tag.vlan = 7
    frame = bytes(LINK / tag / peers.opening(peers.client, peers.vip))
    assert node.run_frame("ingress", frame) == (UNSPEC, frame)
    assert node.states() == (0, 0)


@pytest.mark.parametrize("size", [14, 15, 17, 18, 19, 20, 25, 38])
def test_a_tagged_frame_that_is_cut_off_passes_unchanged(
    node: Node, udp_peers: Peers, size: int
) -> None:
    udp_peers.service(node, [udp_peers.backend])
    frame = bytes(LINK / PRIORITY / udp_peers.opening(udp_peers.client, udp_peers.vip))[:size]
    assert node.run_frame("ingress", frame) == (UNSPEC, frame)


def test_a_tagged_packet_is_refused_by_an_answer_without_a_tag(node: Node, peers: Peers) -> None:
    """As the kernel's answers."""
    peers.service(node, [])
    packet = peers.opening(peers.external, peers.vip)
    answer = reset(packet) if is_reset(packet) else unreachable(packet)
    wanted = bytes(Ether(src=LINK.dst, dst=LINK.src) / answer)
    assert node.run_frame("ingress", bytes(LINK / PRIORITY / packet)) == (REDIRECT, wanted)


def test_a_tagged_error_about_a_connection_is_translated(node: Node, udp_peers: Peers) -> None:
    peers = udp_peers
    peers.service(node, [peers.backend], masquerade=True)
    out = node.forward(peers.opening(peers.external, peers.vip))
    about = error(peers.router, out.src, out)
    plain = node.ingress(about)
    assert plain.dst == address_of(peers.external)
    assert same(through(node, "ingress", about), plain)


def test_fragments_with_tags_follow_their_first_one(node: Node, udp_peers: Peers) -> None:
    peers = udp_peers
    peers.service(node, [peers.backend])
    payload = bytes(range(256)) * 10
    sent = cut(peers.data(peers.client, peers.vip, payload))
    wanted = cut(peers.data(peers.client, peers.backend, payload))
    assert len(sent) == 3
    for packet, other in zip(sent, wanted, strict=True):
        assert same(through(node, "ingress", packet), other)
