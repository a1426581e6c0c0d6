"""A connection's packets, there and back, byte by byte."""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers


def test_a_pod_reaches_a_backend_and_gets_replies_from_the_frontend(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    out = node.forward(peers.opening(peers.client, peers.vip))
    assert same(out, peers.opening(peers.client, peers.backend))
    back = node.forward(peers.answer(peers.backend, peers.client))
    assert same(back, peers.answer(peers.vip, peers.client))


def test_every_later_packet_is_translated_the_same_way(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    for payload in (b"a", b"bc", b"", b"d" * 1400):
        out = node.forward(peers.data(peers.client, peers.vip, payload))
        assert same(out, peers.data(peers.client, peers.backend, payload))
        back = node.forward(peers.data(peers.backend, peers.client, payload))
        assert same(back, peers.data(peers.vip, peers.client, payload))


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_all_other_fields_stay_as_they_are(node: Node, tcp_peers: Peers, masquerade: bool) -> None:
    """The class of traffic, congestion, hops, identification, window, urgent data and options."""
    client, vip, backend, seen = tcp_peers.connected(node, outside=True, masquerade=masquerade)

    def unusual(source: str, destination: str) -> Packet:
        packet = tcp(source, destination, "PAUEC", b"data")
        if packet.version == 4:
            packet.tos, packet.ttl, packet.id, packet.flags = 0x8D, 7, 0xABCD, "DF"
        else:
            packet.tc, packet.hlim, packet.fl = 0x8D, 7, 0x12345
        segment = packet.payload
        segment.seq, segment.ack, segment.window, segment.urgptr = 0x89ABCDEF, 0x1234567, 501, 3
        segment.reserved = 5
        segment.options = [("NOP", None), ("Timestamp", (1, 2)), (0xB7, b"\4\0\0\0"), ("EOL", None)]
        return packet

    assert same(node.forward(unusual(client, vip)), unusual(seen, backend))
    assert same(node.forward(unusual(backend, seen)), unusual(vip, client))


def test_destinations_change_at_ingress_and_sources_at_egress(node: Node, peers: Peers) -> None:
    """Between the hooks the kernel routes an ordinary packet from client to backend."""
    peers.service(node, [peers.backend])
    routed = node.ingress(peers.opening(peers.client, peers.vip))
    assert same(routed, peers.opening(peers.client, peers.backend))
    assert same(node.egress(routed), routed)
    routed = node.ingress(peers.answer(peers.backend, peers.client))
    assert same(routed, peers.answer(peers.backend, peers.client))
    assert same(node.egress(routed), peers.answer(peers.vip, peers.client))


def test_the_last_packets_of_a_closing_connection_are_translated(
    node: Node, tcp_peers: Peers
) -> None:
    client, vip, backend, seen = tcp_peers.connected(node)
    tcp_peers.close(node, client, vip, backend, seen)
    assert same(node.forward(tcp(client, vip, "A")), tcp(client, backend, "A"))
    assert same(node.forward(tcp(backend, client, "FA")), tcp(vip, client, "FA"))
    assert same(node.forward(tcp(client, vip, "R")), tcp(client, backend, "R"))


def test_a_refusal_is_translated_back(node: Node, tcp_peers: Peers) -> None:
    client, vip, backend = tcp_peers.served(node)
    node.forward(tcp(client, vip))
    assert same(node.forward(tcp(backend, client, "RA")), tcp(vip, client, "RA"))


def test_a_refusal_is_translated_back_through_a_masquerade(node: Node, tcp_peers: Peers) -> None:
    external, vip, backend = tcp_peers.external, tcp_peers.vip, tcp_peers.backend
    tcp_peers.service(node, [backend], masquerade=True)
    out = node.forward(tcp(external, vip))
    seen = tcp_peers.with_port(out.src, out.payload.sport)
    assert same(node.forward(tcp(backend, seen, "RA")), tcp(vip, external, "RA"))
