"""Frames for another machine, which the port of a bridge passes on: between pods, for example."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.packets.node import UNSPEC, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_echo import ECHO, ping

OTHER_MAC = "02:00:00:00:99:99"


def switched(node: Node, packet: Packet) -> Packet:
    """Return a packet after ingress on its way to another machine; it must go on."""
    verdict, frame = node.run_frame("ingress", bytes(Ether(dst=OTHER_MAC) / packet))
    assert verdict == UNSPEC
    return (IPv6 if packet.version == 6 else IP)(frame[14:])


def test_a_frontend_is_not_handled_in_a_frame_for_another_machine(node: Node, peers: Peers) -> None:
    client, vip, _ = peers.served(node)
    opening = peers.opening(client, vip)
    assert same(switched(node, opening), opening)
    assert sum(node.states()) == 0


def test_a_first_packet_to_a_backend_whose_ports_a_connection_has_gets_another_port(
    node: Node, tcp_peers: Peers
) -> None:
    client, _, backend, _ = tcp_peers.connected(node)
    out = switched(node, tcp(client, backend, "S"))
    assert out.payload.sport != tcp(client, backend).payload.sport


@pytest.mark.parametrize("flags", ["A", "PA", "SA", "FA", "R"])
def test_what_begins_no_connection_stays_as_it_is(node: Node, tcp_peers: Peers, flags: str) -> None:
    """A connection through the frontend has the same ports at the backend."""
    client, _, backend, _ = tcp_peers.connected(node)
    packet = tcp(client, backend, flags)
    assert same(switched(node, packet), packet)


def test_the_middle_of_a_connection_to_a_frontend_stays_as_it_is(
    node: Node, tcp_peers: Peers
) -> None:
    """Another node may have its entry."""
    client, vip, _, _ = tcp_peers.connected(node)
    states = node.states()
    packet = tcp(tcp_peers.with_port(client, 41000), vip, "PA", b"middle")
    assert same(switched(node, packet), packet)
    assert node.states() == states


def test_a_ping_to_the_address_of_a_service_is_not_answered(node: Node, tcp_peers: Peers) -> None:
    tcp_peers.served(node, policies=ECHO, guarded=True)
    asks = ping(address_of(tcp_peers.client), address_of(tcp_peers.vip))
    assert same(switched(node, asks), asks)
    assert node.counter("echo_requests_answered") == 0
    node.run("ingress", asks)
    assert node.counter("echo_requests_answered") == 1


def test_what_begins_no_association_stays_as_it_is(node: Node, sctp_peers: Peers) -> None:
    """Nor does a packet that ends before its first chunk."""
    client, _, backend, _ = sctp_peers.connected(node)
    packet = sctp_peers.data(client, backend)
    assert same(switched(node, packet), packet)
    cut = type(packet)(bytes(packet)[: len(bytes(packet)) - len(bytes(packet.payload.payload))])
    assert same(switched(node, cut), cut)
