"""Pings of addresses of Services, where they are answered (--vip-echo).

Whole frames are compared, so every checksum is: scapy has made those of the wanted ones.
"""

from __future__ import annotations

import itertools

import pytest
from scapy.layers.inet import ICMP, IPOption_NOP, IPOption_RR
from scapy.layers.inet6 import (
    ICMPv6EchoReply,
    ICMPv6EchoRequest,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from bpfsvc.services.entries import Policies, Policy
from tests.packets.fragment import PAYLOAD, cut, waits
from tests.packets.node import REDIRECT, SHOT, UNSPEC, Node
from tests.packets.packet import LINK, ip, same
from tests.packets.peers import TCP_PEERS, Peers, address_of
from tests.packets.refusals import refused
from tests.packets.test_priority_tags import PRIORITY

SERVE, DROP = Policy(0, 1, False, False), Policy(0, 0, False, False)
ECHO = Policies(SERVE, SERVE, SERVE, echo=True)
NO_ECHO = Policies(DROP, DROP, DROP)


@pytest.fixture
def peers(udp_peers: Peers) -> Peers:
    """One protocol: what a Service serves makes no difference to a ping."""
    return udp_peers


@pytest.fixture
def answering(node: Node, peers: Peers) -> Node:
    """A node with a Service; its cluster IP answers."""
    peers.service(node, [peers.backend], frontends=[peers.vip], policies=ECHO, guarded=True)
    return node


def ping(source: str, destination: str, data: bytes = b"abc", hops: int = 17) -> Packet:
    """Make an echo request."""
    packet = _message(source, destination, data, reply=False)
    if packet.version == 4:
        packet.ttl, packet.tos = hops, 0x48
    else:
        packet.hlim, packet.tc, packet.fl = hops, 0x48, 0x12345
    return packet


def pong(request: Packet, data: bytes = b"abc") -> Packet:
    """Make the reply to it: all of it stays but addresses, type and hop limit."""
    packet = _message(request.dst, request.src, data, reply=True)
    if packet.version == 4:
        packet.tos = request.tos
    else:
        packet.tc, packet.fl = request.tc, request.fl
    return packet


def _message(source: str, destination: str, data: bytes, *, reply: bool) -> Packet:
    source, destination = address_of(source), address_of(destination)
    if ":" in source:
        header = ICMPv6EchoReply if reply else ICMPv6EchoRequest
        return ip(source, destination) / header(id=0x1234, seq=0xFFF7, data=data)
    kind = 0 if reply else 8
    return ip(source, destination) / ICMP(type=kind, id=0x1234, seq=0xFFF7) / Raw(data)


def answered(
    node: Node, request: Packet, reply: Packet, hook: str = "ingress", trailer: bytes = b""
) -> bool:
    """True if a frame goes back with the reply."""
    wanted = bytes(Ether(src=LINK.dst, dst=LINK.src) / reply) + trailer
    return node.run_frame(hook, bytes(LINK / request) + trailer) == (REDIRECT, wanted)


@pytest.mark.parametrize("who", ["pod", "node", "stranger"])
def test_a_ping_of_a_cluster_ip_is_answered(answering: Node, peers: Peers, who: str) -> None:
    client = {"pod": peers.client, "node": peers.node_address, "stranger": peers.external}[who]
    request = ping(client, peers.vip)
    assert answered(answering, request, pong(request))
    assert answering.counter("echo_requests_answered") == 1
    assert answering.counter("rejected__no_endpoints") == 0
    assert answering.states() == (0, 0)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 56, 57, 1399, 3001])
def test_its_data_are_kept_whatever_their_size(answering: Node, peers: Peers, size: int) -> None:
    data = bytes(number * 7 + 1 & 0xFF for number in range(size))
    request = ping(peers.external, peers.vip, data)
    assert answered(answering, request, pong(request, data))


def test_checksums_are_right_at_their_limits(answering: Node, peers: Peers) -> None:
    """A change that carries, and sums of 0 and 0xffff."""
    for word in range(0, 0x10000, 0x1F1):
        data = word.to_bytes(2, "big") + b"\xff\xff"
        request = ping(peers.external, peers.vip, data)
        assert answered(answering, request, pong(request, data)), hex(word)


def test_the_hop_limit_begins_anew(answering: Node, peers: Peers) -> None:
    for hops in (1, 64, 255):
        request = ping(peers.external, peers.vip, hops=hops)
        assert answered(answering, request, pong(request))


def test_the_padding_of_a_short_frame_stays(answering: Node, peers: Peers) -> None:
    request = ping(peers.external, peers.vip, b"")
    assert answered(answering, request, pong(request, b""), trailer=bytes(18))


def test_a_frame_with_a_priority_tag_is_answered_without_it(answering: Node, peers: Peers) -> None:
    request = ping(peers.external, peers.vip)
    wanted = bytes(Ether(src=LINK.dst, dst=LINK.src) / pong(request))
    assert answering.run_frame("ingress", bytes(LINK / PRIORITY / request)) == (REDIRECT, wanted)


def test_without_an_endpoint_a_cluster_ip_refuses(answering: Node, peers: Peers) -> None:
    peers.service(answering, [], frontends=[peers.vip], guarded=True)
    assert refused(answering, ping(peers.external, peers.vip))
    assert answering.counter("echo_requests_answered") == 0


def test_where_it_is_off_a_cluster_ip_refuses(answering: Node, peers: Peers) -> None:
    policies = ECHO._replace(echo=False)
    peers.service(
        answering, [peers.backend], frontends=[peers.vip], policies=policies, guarded=True
    )
    assert refused(answering, ping(peers.external, peers.vip))


def test_an_external_address_answers_while_a_service_there_has_endpoints(
    node: Node, peers: Peers
) -> None:
    """Two Services may share one, each with ports of its own."""
    request = ping(peers.external, peers.vip)
    for name, port in (("one", 80), ("two", 443)):
        frontend = peers.with_port(peers.vip, port)
        peers.service(node, [peers.backend], name, frontends=[frontend], policies=ECHO)
        assert answered(node, request, pong(request))
    peers.service(node, [], "one", frontends=[peers.vip], policies=NO_ECHO)
    assert answered(node, request, pong(request))
    frontend = peers.with_port(peers.vip, 443)
    peers.service(node, [], "two", frontends=[frontend], policies=NO_ECHO)
    assert same(node.forward(request), request)
    assert not dict(node.pinned.map("echo_addresses").items())


def test_several_ports_of_a_service_count_once_each(node: Node, peers: Peers) -> None:
    frontends = [peers.with_port(peers.vip, port) for port in (80, 81, 443)]
    request = ping(peers.external, peers.vip)
    peers.service(node, [peers.backend], frontends=frontends, policies=ECHO)
    peers.service(node, [peers.backend], frontends=frontends[:1], policies=ECHO)
    assert answered(node, request, pong(request))
    peers.service(node, [], frontends=frontends, policies=NO_ECHO)
    assert same(node.forward(request), request)


def test_an_address_that_the_node_has_is_left_to_the_kernel(answering: Node, peers: Peers) -> None:
    answering.node_address(address_of(peers.vip), nodeports=False)
    request = ping(peers.external, peers.vip)
    assert same(answering.ingress(request), request)


def test_other_messages_are_left_alone(answering: Node, peers: Peers) -> None:
    reply = pong(ping(peers.vip, peers.external))
    assert same(answering.forward(reply), reply)
    elsewhere = ping(peers.external, peers.backend)
    assert same(answering.forward(elsewhere), elsewhere)


def test_a_longer_ip_header_is_not_answered(answering: Node, peers: Peers) -> None:
    if peers.family == 4:
        for options in ([IPOption_NOP()] * 4, [IPOption_RR(length=7, routers=["0.0.0.0"])]):
            request = ping(peers.external, peers.vip)
            request.options = options
            assert refused(answering, request)
        return
    request = _message(peers.external, peers.vip, b"abc", reply=False)
    for header in (IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt(), IPv6ExtHdrRouting(segleft=0)):
        assert refused(answering, request, header)


def test_a_sender_that_must_not_be_answered_is_not(answering: Node, peers: Peers) -> None:
    senders = {4: ("0.0.0.0", "224.0.0.1", "127.0.0.1"), 6: ("::", "ff02::1")}[peers.family]
    for sender in senders:
        assert answering.drops("ingress", ping(sender, peers.vip)), sender


@pytest.mark.parametrize("sender", ["2001::", "0:0:1::", "::1:0:0:0", "2001:db8::1"])
def test_a_sender_of_which_only_some_words_are_not_zero_is_answered(
    node: Node, sender: str
) -> None:
    peers = TCP_PEERS[1]
    peers.service(node, [peers.backend], frontends=[peers.vip], policies=ECHO)
    verdict, reply = node.run("ingress", ping(sender, peers.vip))
    assert (verdict, reply.src, reply.dst) == (REDIRECT, address_of(peers.vip), sender)


def test_a_frame_for_another_machine_passes(answering: Node, peers: Peers) -> None:
    frame = bytes(Ether(src=LINK.src, dst="02:00:00:00:00:99") / ping(peers.external, peers.vip))
    assert answering.run_frame("ingress", frame) == (UNSPEC, frame)


def test_fragments_become_the_fragments_of_the_reply(answering: Node, peers: Peers) -> None:
    request = _message(peers.external, peers.vip, PAYLOAD, reply=False)
    reply = _message(peers.vip, peers.external, PAYLOAD, reply=True)
    pairs = list(zip(cut(request), cut(reply), strict=True))
    assert len(pairs) > 2
    for number, order in enumerate(itertools.permutations(pairs[1:])):
        for sent, two in (pairs[0], *order):
            assert answered(answering, sent, two), number


def test_a_fragment_that_overtook_the_first_waits_for_it(answering: Node, peers: Peers) -> None:
    request = _message(peers.external, peers.vip, PAYLOAD, reply=False)
    reply = _message(peers.vip, peers.external, PAYLOAD, reply=True)
    (first, *later), wanted = cut(request), cut(reply)
    assert waits(answering, later[0])
    for sent, two in zip((first, *later), wanted, strict=True):
        assert answered(answering, sent, two)


def test_the_rest_of_a_datagram_is_dropped_when_its_endpoints_have_gone(
    answering: Node, peers: Peers
) -> None:
    first, *later = cut(_message(peers.external, peers.vip, PAYLOAD, reply=False))
    assert answering.run("ingress", first)[0] == REDIRECT
    peers.service(answering, [], frontends=[peers.vip], guarded=True)
    for sent in later:
        assert answering.run("ingress", sent)[0] == SHOT


def test_what_the_node_itself_sends_is_answered_where_it_leaves(
    answering: Node, peers: Peers
) -> None:
    request = ping(peers.node_address, peers.vip)
    assert answered(answering, request, pong(request), "egress")
    large = _message(peers.node_address, peers.vip, PAYLOAD, reply=False)
    reply = _message(peers.vip, peers.node_address, PAYLOAD, reply=True)
    for sent, two in zip(cut(large), cut(reply), strict=True):
        assert answered(answering, sent, two, "egress")


def test_what_is_forwarded_or_has_no_endpoint_leaves_as_it_came(
    answering: Node, peers: Peers
) -> None:
    request = ping(peers.external, peers.vip)
    verdict, after = answering.run("egress", request, arrived=answering.interface)
    assert (verdict, bytes(after)) == (UNSPEC, bytes(request))
    peers.service(answering, [], frontends=[peers.vip], guarded=True)
    assert same(answering.egress(request), request)
