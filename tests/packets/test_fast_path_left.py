"""Packets that the fast path leaves to the stack for their form, or for what the node knows."""

from __future__ import annotations

import struct
import time

import pytest
from scapy.layers.inet6 import IPv6ExtHdrHopByHop, RouterAlert
from scapy.layers.l2 import Dot1Q

from tests.packets.established import (
    Connection,
    directly_near,
    open_by_the_stack,
    through_service,
)
from tests.packets.extension_headers import with_headers
from tests.packets.fast_path import (
    MTU,
    WEB_PORT,
    FastPathTestbed,
    fast_packets,
    forwarded,
    hop,
    open_far,
    open_masqueraded,
    prepare,
)
from tests.packets.fragment import PAYLOAD, cut
from tests.packets.node import REDIRECT, UNSPEC, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers
from tests.packets.test_fast_path_direct import open_direct
from tests.packets.test_fast_path_established import ENOUGH
from tests.packets.test_fast_path_outside import open_by
from tests.packets.untranslated import prepared


def test_of_a_gso_packet_of_udp_the_length_of_each_segment_counts(
    udp_testbed: FastPathTestbed, udp_peers: Peers
) -> None:
    client, vip, backend = udp_peers.client, udp_peers.vip, udp_peers.backend
    open_far(udp_testbed, udp_peers)
    fits = MTU - len(bytes(udp_peers.data(client, vip, b"")))
    sent, routed = (udp_peers.data(client, to, b"x" * 2900) for to in (vip, backend))
    assert forwarded(udp_testbed.to_neighbour("pod0", sent, gso=fits), routed)
    assert same(udp_testbed.to_stack("pod0", sent, gso=fits + 1), routed)


@pytest.mark.parametrize("peers", [TCP_PEERS[0], UDP_PEERS[0]], ids=str)
def test_a_packet_without_a_length_that_is_no_gso_packet_takes_the_stack(
    fast_path_testbed: FastPathTestbed, node: Node, peers: Peers
) -> None:
    assert fast_path_testbed.node is node
    prepare(fast_path_testbed, peers)
    open_far(fast_path_testbed, peers)
    sent, routed = (peers.data(peers.client, to) for to in (peers.vip, peers.backend))
    for packet in (sent, routed):
        packet.len = 0
    assert same(fast_path_testbed.to_stack("pod0", sent), routed)


def test_a_gso_packet_with_another_option_than_a_jumbo_length_takes_the_stack(
    fast_path_testbed: FastPathTestbed, node: Node
) -> None:
    """Its option is as long, and it is fast without that."""
    assert fast_path_testbed.node is node
    peers = TCP_PEERS[1]
    prepare(fast_path_testbed, peers)
    open_direct(fast_path_testbed, peers)
    plain = peers.data(peers.client, peers.backend, b"x" * 2900)
    fast_path_testbed.to_neighbour("pod0", plain, gso=1000)
    header = IPv6ExtHdrHopByHop(options=[RouterAlert()])
    packet = with_headers(plain, header)
    assert len(bytes(packet)) == len(bytes(plain)) + 8
    assert same(fast_path_testbed.to_stack("pod0", packet, gso=1000), packet)


def test_a_first_packet_with_a_tag_in_its_bytes_takes_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """The tag would stay on it. Without the tag the same packet is fast."""
    fast_peers.service(testbed.node, [fast_peers.backend])
    opening = fast_peers.opening(fast_peers.client, fast_peers.backend)
    tagged = Dot1Q(prio=5, vlan=0) / opening
    verdict, frame = testbed.run("ingress", "pod0", tagged)
    assert verdict == UNSPEC
    assert same(frame.payload, tagged)
    assert forwarded(testbed.to_neighbour("pod0", opening), opening)


def forget_interface(testbed: FastPathTestbed, name: str) -> None:
    """Have the programs not know an interface."""
    interfaces = testbed.node.pinned.map("interfaces")
    interfaces.delete_many([struct.pack("=I", testbed.ends[name].index)])
    testbed.forget_routes()


def test_a_direct_packet_by_an_interface_that_is_not_known_takes_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    open_direct(testbed, fast_peers)
    forget_interface(testbed, "pod0")
    packet = fast_peers.data(fast_peers.client, fast_peers.backend)
    assert same(testbed.to_stack("pod0", packet), packet)
    testbed.write_interface("pod0")
    assert forwarded(testbed.to_neighbour("pod0", packet), packet)


def test_packets_of_a_connection_by_an_interface_that_is_not_known_take_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    client, vip, backend = fast_peers.client, fast_peers.vip, fast_peers.backend
    open_far(testbed, fast_peers)
    forget_interface(testbed, "tun0")
    routed = testbed.to_stack("tun0", fast_peers.data(client, vip))
    assert same(routed, fast_peers.data(client, backend))
    answer = fast_peers.data(backend, client)
    assert same(testbed.to_stack("tun0", answer), answer)
    translated = fast_peers.data(vip, client)
    assert forwarded(testbed.to_peer("eth0", answer, to="pod0"), translated)


def test_what_a_masquerade_at_egress_has_to_translate_takes_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    """A client sends to the backend itself, from the port of its connection by a NodePort."""
    client, backend = tcp_peers.client, tcp_peers.backend
    seen = open_masqueraded(tcp_testbed, tcp_peers, backend, "eth0")
    packet = tcp_peers.data(client, backend)
    assert same(tcp_testbed.to_stack("pod0", packet), packet)
    out = tcp_testbed.egress("eth0", packet, came_by="pod0")
    assert same(out, tcp_peers.data(seen, backend))


def test_when_only_connections_from_outside_leave_the_fast_path_their_answers_do(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    opened = open_by(testbed, fast_peers, "near, local")
    testbed.node.settings(fast_path=1, fast_outside=0)
    answer = fast_peers.data(opened.backend, opened.seen)
    assert same(testbed.to_stack(opened.by, answer), answer)
    translated = fast_peers.data(opened.entry, opened.seen)
    assert same(testbed.egress("eth0", answer, came_by=opened.by), translated)


def test_while_connections_of_an_older_build_are_copied_no_datagram_is_fast_without_them(
    udp_testbed: FastPathTestbed, udp_peers: Peers
) -> None:
    open_direct(udp_testbed, udp_peers)
    open_direct(udp_testbed, udp_peers)
    packets = [
        ("pod0", udp_peers.data(udp_peers.client, udp_peers.backend)),
        ("eth0", udp_peers.data(udp_peers.backend, udp_peers.client)),
    ]
    udp_testbed.node.settings(fast_path=1, takeover=1)
    before = fast_packets(udp_testbed)
    for name, packet in packets:
        assert same(udp_testbed.to_stack(name, packet), packet)
    assert fast_packets(udp_testbed) == before
    udp_testbed.node.settings(fast_path=1)
    for name, packet in packets:
        assert udp_testbed.run("ingress", name, packet)[0] == REDIRECT


def test_while_connections_of_an_older_build_are_copied_one_between_pods_begins_in_the_stack(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """It is none from outside either, which would be fast."""
    client, vip, backend = fast_peers.served(testbed.node)
    testbed.node.settings(fast_path=1, fast_outside=1, takeover=1)
    routed = testbed.to_stack("pod0", fast_peers.opening(client, vip))
    assert same(routed, fast_peers.opening(client, backend))
    testbed.node.settings(fast_path=1, fast_outside=1)
    testbed.to_stack("eth0", fast_peers.answer(backend, client))
    routed = testbed.to_stack("pod0", fast_peers.proof(client, vip, backend, client)[0])
    assert same(routed, fast_peers.proof(client, vip, backend, client)[1])


@pytest.mark.parametrize("filled", [False, True], ids=["its ports", "each port"])
def test_a_packet_whose_masquerade_is_gone_goes_to_egress_as_it_is_routed(
    testbed: FastPathTestbed, fast_peers: Peers, filled: bool
) -> None:
    """There it is dropped, or translated by an entry that is written meanwhile."""
    client, backend, node = fast_peers.client, fast_peers.backend, testbed.node
    open_masqueraded(testbed, fast_peers, backend, "eth0")
    node.set_fields("connections", seen=time.monotonic_ns() + 60 * 10**9)
    routed = fast_peers.data(client, backend)
    assert node.pinned.map("connections").delete(node.flow("egress", routed))
    if filled:
        node.fill_filter(1)
    sent = fast_peers.data(client, fast_peers.on_node(WEB_PORT))
    assert forwarded(testbed.to_neighbour("pod0", sent), routed)


@pytest.mark.parametrize("of", ["the first one", "a later one"])
def test_fragments_that_open_a_connection_of_another_node_take_the_stack(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers, of: str
) -> None:
    """Nothing is written of it: what follows takes the stack, too."""
    connection = prepared(tcp_testbed, tcp_peers)
    pieces = cut(tcp(connection.client, connection.pod, "S", PAYLOAD))
    before = tcp_testbed.node.count("connections")
    for packet in pieces[:1] if of == "the first one" else pieces:
        assert same(tcp_testbed.to_stack("eth0", packet), packet)
    connection.by_stack()
    assert tcp_testbed.node.count("connections") == before


def test_where_only_the_middle_is_fast_fragments_take_the_stack(
    udp_testbed: FastPathTestbed, udp_peers: Peers
) -> None:
    udp_testbed.node.settings(established=1, fast_outside=1)
    made = through_service(udp_testbed, udp_peers)
    open_by_the_stack(made)
    made.write("FAST")
    made.fast(True)
    made.fast(False)
    before = fast_packets(udp_testbed)
    client, vip, backend = udp_peers.client, udp_peers.vip, udp_peers.backend
    sent, routed, answer = (
        cut(udp_peers.data(*ends, PAYLOAD))
        for ends in ((client, vip), (client, backend), (backend, client))
    )
    for packet, wanted in zip(sent, routed, strict=True):
        assert same(udp_testbed.to_stack("pod0", packet), wanted)
    for packet in answer:
        assert same(udp_testbed.to_stack("eth0", packet), packet)
    assert fast_packets(udp_testbed) == before


def test_where_only_the_middle_is_fast_an_answer_with_a_longer_header_takes_the_stack(
    fast_path_testbed: FastPathTestbed, node: Node
) -> None:
    assert fast_path_testbed.node is node
    peers = UDP_PEERS[1]
    prepare(fast_path_testbed, peers)
    node.settings(established=1, fast_outside=1)
    made = through_service(fast_path_testbed, peers)
    open_by_the_stack(made)
    made.write("FAST")
    made.fast(False)
    plain = peers.data(peers.backend, peers.client)
    packet = with_headers(plain, IPv6ExtHdrHopByHop(options=[RouterAlert()]))
    assert same(fast_path_testbed.to_stack("eth0", packet), packet)
    made.fast(False)


@pytest.mark.parametrize("name", ["pod0", "pod1"])
def test_a_connection_by_an_interface_that_is_not_known_is_no_candidate(
    testbed: FastPathTestbed, fast_peers: Peers, name: str
) -> None:
    testbed.node.settings(established=1)
    made = directly_near(testbed, fast_peers)
    open_by_the_stack(made)
    forget_interface(testbed, name)
    pass_often(made)
    assert made.states() == []
    testbed.write_interface(name)
    pass_often(made)
    assert made.states() == ["CANDIDATE"]


@pytest.mark.parametrize("bridges", [1, 2])
def test_a_connection_between_ports_is_a_candidate_if_they_are_of_two_bridges(
    testbed: FastPathTestbed, fast_peers: Peers, bridges: int
) -> None:
    testbed.node.settings(established=1)
    made = directly_near(testbed, fast_peers)
    open_by_the_stack(made)
    testbed.write_interface("pod0", bridge=4_000_001)
    testbed.write_interface("pod1", bridge=4_000_000 + bridges)
    pass_often(made)
    assert made.states() == ([] if bridges == 1 else ["CANDIDATE"])


def pass_often(connection: Connection) -> None:
    """Have so many packets of both sides pass netfilter that a connection may be a candidate."""
    for _ in range(ENOUGH):
        connection.passes_netfilter(True)
        connection.passes_netfilter(False)


def test_where_each_port_is_in_the_filter_a_connection_is_fast_as_with_fewer(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """Both tables of connections are searched."""
    testbed.node.fill_filter(1)
    open_far(testbed, fast_peers)
    answer = fast_peers.data(fast_peers.backend, fast_peers.client)
    translated = fast_peers.data(fast_peers.vip, fast_peers.client)
    assert forwarded(testbed.to_peer("eth0", answer, to="pod0"), translated)


def test_where_each_port_is_in_the_filter_a_flow_between_pods_is_fast(
    tcp_testbed: FastPathTestbed, tcp_peers: Peers
) -> None:
    tcp_testbed.node.fill_filter(1)
    for sent, flags in ((True, "S"), (False, "SA"), (True, "A"), (True, "PA"), (False, "PA")):
        client, backend = tcp_peers.client, tcp_peers.backend
        packet = tcp(client, backend, flags) if sent else tcp(backend, client, flags)
        if sent:
            assert same(tcp_testbed.to_neighbour("pod0", packet), hop(packet))
        else:
            assert same(tcp_testbed.to_peer("eth0", packet, to="pod0"), hop(packet))


def test_a_first_fragment_between_pods_takes_the_stack(
    udp_testbed: FastPathTestbed, udp_peers: Peers
) -> None:
    """As all that follow it, though the first packet of a flow to an endpoint may be fast."""
    client, _, backend = udp_peers.served(udp_testbed.node)
    for fragment in cut(udp_peers.data(client, backend, PAYLOAD)):
        assert same(udp_testbed.to_stack("pod0", fragment), fragment)


def test_a_first_packet_between_pods_of_other_nodes_that_leaves_is_not_forwarded_once_more(
    testbed: FastPathTestbed, fast_peers: Peers
) -> None:
    """It comes by the interface where it leaves. It may have a masqueraded connection's port."""
    peers = fast_peers
    _, _, backend = peers.served(testbed.node)
    other = peers.with_port("10.244.2.9" if peers.family == 4 else "fd44:0:0:2::9", 12345)
    testbed.route(other, "eth0", "192.168.50.12" if peers.family == 4 else "fd50::12")
    testbed.node.settings(fast_path=1, fast_outside=1)
    packet = peers.opening(other, backend)
    assert same(testbed.egress("eth0", packet, came_by="eth0"), packet)
    assert fast_packets(testbed) == 0
