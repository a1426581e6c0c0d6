"""Frames whose VLAN tag the kernel keeps beside them, as it does at most interfaces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.l2 import Dot1Q

from tests.packets.fast_path import prepare
from tests.packets.node import Node
from tests.packets.packet import tcp
from tests.packets.peers import TCP_PEERS
from tests.packets.refusals import reset
from tests.packets.test_unknown_connections import answer, segment
from tests.packets.wire import POD, UPLINK, Wire, wire

PRIORITY, OF_VLAN = Dot1Q(prio=5, vlan=0), Dot1Q(vlan=7)


@pytest.fixture(scope="module")
def links(loaded: Node) -> Iterator[Wire]:
    with wire(loaded) as made:
        yield made


@pytest.fixture
def tagged(links: Wire, node: Node) -> Wire:
    """A node that refuses unknown connections to a frontend over IPv6."""
    peers = TCP_PEERS[1]
    prepare(links.testbed, peers)
    node.settings()
    links.testbed.route(peers.vip, UPLINK, "fd50::12")
    links.clear()
    return links


def test_a_packet_with_a_priority_tag_is_refused_by_an_answer_without(tagged: Wire) -> None:
    peers = TCP_PEERS[1]
    peers.service(tagged.node, [])
    packet = tcp(peers.client, peers.vip)
    tagged.send(POD, PRIORITY / packet)
    assert len(tagged.seen(POD, reset(packet))) == 1


def test_a_packet_of_a_vlan_is_left_alone(tagged: Wire) -> None:
    """It is for the interface of that; so is one of a VLAN that has a priority tag, too."""
    peers = TCP_PEERS[1]
    peers.service(tagged.node, [])
    for tags in (OF_VLAN, PRIORITY / PRIORITY):
        tagged.send(POD, tags / tcp(peers.client, peers.vip))
    other = segment(peers, "A")
    peers.service(tagged.node, [peers.backend])
    tagged.send(POD, other)
    assert len(tagged.seen(POD, answer(other))) == 1
    assert tagged.node.counter("rejected__no_endpoints") == 0
