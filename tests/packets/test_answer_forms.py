"""Refused packets of rare forms, and what answers them: BIG TCP, wrong lengths, no link header."""

from __future__ import annotations

import pytest
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop, PadN
from scapy.packet import Packet

from tests.packets.extension_headers import with_headers
from tests.packets.fast_path import FastPathTestbed, prepare
from tests.packets.node import REDIRECT, SHOT, UNSPEC, Node
from tests.packets.packet import same, tcp, udp
from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers
from tests.packets.refusals import reset, unreachable
from tests.packets.replaced import ACCEPTED, replaced_programs
from tests.packets.test_big_tcp import FORMS, Form
from tests.packets.test_echo import ECHO, ping, pong
from tests.packets.test_reject import LIMITS, answers


@pytest.fixture(params=FORMS, ids=["IPv4", "IPv6", "IPv6 with a jumbo header"])
def form(request: pytest.FixtureRequest) -> Form:
    return Form(request.param[0], jumbo=request.param[1])


def test_a_refused_packet_of_big_tcp_is_answered(
    fast_path_testbed: FastPathTestbed, node: Node, form: Form
) -> None:
    """The reset says its length; a header for long packets in it becomes padding."""
    testbed, peers = fast_path_testbed, form.peers
    prepare(testbed, peers)
    peers.service(node, [])
    opening = tcp(peers.client, peers.vip, "S", bytes(1000))
    big = form.big(opening)
    wanted = unreachable(big) if peers.family == 4 else reset(opening)
    if big.version == 6 and big.nh == 0:
        padding = IPv6ExtHdrHopByHop(options=[PadN(optdata=bytes(4))], autopad=0)
        wanted = with_headers(wanted, padding)
    verdict, frame = testbed.run("ingress", "pod0", big, gso=form.gso)
    assert verdict == REDIRECT
    assert (frame.src, frame.dst) == (testbed.ends["pod0"].mac, testbed.far["pod0"])
    assert same(frame.payload, wanted)


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_a_packet_that_says_to_be_longer_than_it_is_is_quoted_to_its_end(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [])
    packet = udp(peers.external, peers.vip, bytes(16))
    setattr(packet, "len" if peers.family == 4 else "plen", 1000)
    verdict, out = node.run("ingress", packet)
    assert verdict == REDIRECT
    assert same(out, unreachable(packet))


def test_a_syn_that_says_to_be_shorter_than_its_header_is_answered_by_an_error(
    node: Node,
) -> None:
    """What it says is quoted."""
    peers = TCP_PEERS[1]
    peers.service(node, [])
    packet = tcp(peers.external, peers.vip)
    packet.plen = 16
    verdict, out = node.run("ingress", packet)
    assert verdict == REDIRECT
    assert same(out, unreachable(IPv6(bytes(packet)[: 40 + 16])))


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_with_a_limit_of_no_errors_none_is_sent(node: Node, peers: Peers) -> None:
    peers.service(node, [])
    node.settings(**LIMITS | {"icmp_per_second": 0})
    assert answers(node, [peers.opening(peers.external, peers.vip)] * 3) == 0
    assert node.counter("dropped__icmp_limited") == 3


SENDER = "[fd50:0:86dd::9]:40000"
LONG = bytes(range(40))


def run_without_link(node: Node, packet: Packet) -> tuple[int, bytes]:
    """Run the program of an interface without link headers.

    A test run takes the first 14 bytes for such a header; the type of the frame is in the source.
    """
    data = bytes(packet)
    assert data[12:14] == b"\x86\xdd"
    node.hardware_address(data[:6].hex(":"))
    return node.run_frame("ingress_l3", data)


def test_a_syn_without_a_link_header_is_refused_by_a_reset_without(node: Node) -> None:
    """(In a test run, room for an ICMP error would be made behind the first 14 bytes.)"""
    peers = TCP_PEERS[1]
    peers.service(node, [])
    packet = peers.opening(SENDER, peers.vip)
    assert run_without_link(node, packet) == (REDIRECT, bytes(reset(packet)))


def test_a_ping_without_a_link_header_is_answered_by_one_without(
    node: Node,
) -> None:
    peers = TCP_PEERS[1]
    peers.service(node, [peers.backend], frontends=[peers.vip], policies=ECHO, guarded=True)
    asks = ping(SENDER, peers.vip, LONG)
    assert run_without_link(node, asks) == (REDIRECT, bytes(pong(asks, LONG)))


@pytest.mark.parametrize("replaced", ["ingress", "ingress_l3"])
def test_a_build_that_is_replaced_gets_what_has_no_link_header_by_its_own_program_for_that(
    node: Node, replaced: str
) -> None:
    """By no other program: then the packet waits, as one of a connection that is not copied yet."""
    peers = TCP_PEERS[1]
    peers.served(node)
    node.settings(takeover=node.pinned.layout.constant("TAKEOVER_ATTACHED"))
    middle = tcp(SENDER, peers.backend, "A")
    with replaced_programs(node, replaced):
        verdict, after = run_without_link(node, middle)
    assert after == bytes(middle)
    assert verdict == (ACCEPTED if replaced == "ingress_l3" else SHOT)


def test_a_connection_without_link_headers_is_translated(node: Node) -> None:
    _, vip, backend = TCP_PEERS[1].served(node)
    for packet, wanted in (
        (tcp(SENDER, vip), tcp(SENDER, backend)),
        (tcp(SENDER, vip, "PA", b"data"), tcp(SENDER, backend, "PA", b"data")),
    ):
        assert run_without_link(node, packet) == (UNSPEC, bytes(wanted))


def test_a_packet_that_says_to_be_shorter_than_its_ip_header_is_dropped(node: Node) -> None:
    """There is nothing to quote. (The kernel would drop it where it is received.)"""
    peers = UDP_PEERS[0]
    peers.service(node, [])
    packet = udp(peers.external, peers.vip, bytes(16))
    packet.len = 19
    assert node.drops("ingress", packet)
    assert node.counter("dropped__reject_failed") == 1
    packet.len = 20
    verdict, out = node.run("ingress", packet)
    assert verdict == REDIRECT
    assert out.payload.payload.len == 20
