"""The port filter: ports outside of it are not looked up, and it contains every connection.

The filter of every packet test is empty at first, so in all tests of this directory the programs
have filled it.
"""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import Peers

SEEN_PORT = 20000
"""The only port for masquerading."""


def through(node: Node, hook: str, packet: Packet) -> Packet:
    """Run a hook on a packet; assert that it passes."""
    return {"ingress": node.ingress, "egress": node.egress}[hook](packet)


@pytest.fixture
def connected(node: Node, peers: Peers) -> Node:
    """A node with a masqueraded connection."""
    node.settings(first=SEEN_PORT, ports=1)
    peers.service(node, [peers.backend], masquerade=True)
    peers.connect(node, peers.external, peers.vip, peers.backend)
    return node


def test_only_ports_of_the_server_side_are_added_and_only_for_the_hook_that_translates(
    connected: Node, peers: Peers
) -> None:
    """Ports of clients would fill the filter."""
    assert connected.filtered() == {
        (peers.protocol, "ingress", "destination", 80),
        (peers.protocol, "egress", "source", 8080),
        (peers.protocol, "egress", "destination", 8080),
        (peers.protocol, "ingress", "source", 8080),
    }


def test_without_masquerade_no_ports_are_added_for_the_outer_pair(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    assert node.filtered() == {
        (peers.protocol, "ingress", "destination", 80),
        (peers.protocol, "egress", "source", 8080),
    }


def test_ports_of_tcp_frontends_are_added_before_any_connection_unless_they_are_nodeports(
    node: Node, peers: Peers
) -> None:
    """So that packets of connections that are not known are looked at."""
    peers.service(node, [peers.backend])
    peers.service(node, [peers.backend], "nodeport", node_port=30080)
    wanted = {("TCP", "ingress", "destination", 80)} if peers.protocol == "TCP" else set()
    assert node.filtered() == wanted
    node.fill_filter(0)
    node.tables.know_destinations()
    assert node.filtered() == wanted


def test_ports_of_a_direct_flow_are_added_only_when_its_port_must_change(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    of_frontends = node.filtered()
    node.forward(peers.opening(peers.client, peers.backend))
    assert node.filtered() == of_frontends
    peers.connect(node, peers.with_port(peers.client, 5000), peers.vip, peers.backend)
    before = node.filtered()
    node.forward(peers.opening(peers.with_port(peers.client, 5000), peers.backend))
    assert node.filtered() - before == {(peers.protocol, "ingress", "destination", 8080)}


def test_a_packet_with_ports_outside_the_filter_passes_unchanged_despite_an_entry(
    connected: Node, peers: Peers
) -> None:
    """No connection is ever in this state; the test shows that the lookup is skipped."""
    packets = [
        ("egress", peers.data(peers.external, peers.backend)),
        ("ingress", peers.data(peers.backend, peers.on_node(SEEN_PORT))),
        ("egress", peers.data(peers.backend, peers.external)),
    ]
    if peers.protocol == "TCP":  # any datagram to a frontend may be the first
        packets.append(("ingress", peers.data(peers.external, peers.vip)))
    connected.fill_filter(0)
    assert all(same(through(connected, *packet), packet[1]) for packet in packets)
    connected.fill_filter(1)
    assert not any(same(through(connected, *each), each[1]) for each in packets)
    assert connected.count("connections") == 4


@pytest.mark.parametrize("hook", ["ingress", "egress"])
@pytest.mark.parametrize("byte", [0, 1], ids=["nothing is known", "everything is known"])
def test_a_packet_without_an_entry_passes_unchanged_and_makes_no_entry(
    node: Node, peers: Peers, hook: str, byte: int
) -> None:
    node.fill_filter(byte)
    before = node.filtered()
    for packet in (
        peers.opening(peers.client, peers.backend),
        peers.data(peers.client, peers.backend),
        peers.data(peers.backend, peers.client),
        peers.answer(peers.backend, peers.client),
    ):
        assert same(through(node, hook, packet), packet)
    assert node.count("connections") == node.count("new_connections") == 0
    assert node.filtered() == before


def test_another_flow_with_the_ports_of_a_connection_passes_unchanged(
    connected: Node, peers: Peers
) -> None:
    """The filter contains ports, not addresses, and only some bits of a port."""
    for port in (8080, 8080 + 8192):
        other = peers.with_port(peers.other_backend, port)
        for packet in (peers.data(peers.external, other), peers.data(other, peers.external)):
            assert same(connected.forward(packet), packet)
    assert (connected.count("new_connections"), connected.count("connections")) == (0, 4)


def test_a_closed_connection_leaves_shared_ports_in_the_filter(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    for client in (peers.client, peers.external):
        peers.connect(node, client, peers.vip, peers.backend)
    closed = node.flow("ingress", peers.opening(peers.client, peers.vip))
    assert node.collect(closed, force=True) == 1
    out = node.forward(peers.data(peers.external, peers.vip))
    assert same(out, peers.data(peers.external, peers.backend))
