"""ICMP messages that end too early, or have what no sender of errors sends: they pass unchanged."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import (
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptMTU,
    ICMPv6NDOptRedirectedHdr,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from bpfsvc.base.address import endpoint_text
from tests.packets.icmp_errors import error
from tests.packets.node import UNSPEC, Node
from tests.packets.packet import LINK, ip
from tests.packets.peers import TCP_PEERS, Peers, address_of

HOOKS = ("ingress", "egress")


def passes(node: Node, frame: bytes, hook: str) -> bool:
    """True if a frame passes a hook unchanged."""
    return node.run_frame(hook, frame) == (UNSPEC, frame)


def header_length(peers: Peers) -> int:
    return 40 if peers.family == 6 else 20


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_an_error_that_does_not_quote_the_ports_passes_unchanged(
    node: Node, tcp_peers: Peers, hook: str, masquerade: bool
) -> None:
    """Whole, it is translated."""
    peers = tcp_peers
    client, _, backend, seen = peers.connected(node, outside=True, masquerade=masquerade)
    source = seen if hook == "ingress" else client
    about = peers.data(source, backend)
    arrives = bytes(LINK / error(peers.router, address_of(source), about, "host unreachable"))
    begin = len(LINK) + header_length(peers)
    ports = begin + 8 + header_length(peers)
    for end in range(begin, ports + 4):
        assert passes(node, arrives[:end], hook), end
    assert node.counter("icmp_errors_translated") == 0
    node.run_frame(hook, arrives[: ports + 8])
    assert node.counter("icmp_errors_translated") == (masquerade or hook == "egress")


@pytest.mark.parametrize("hook", HOOKS)
def test_a_frame_that_ends_within_its_ports_passes_unchanged(
    node: Node, peers: Peers, hook: str
) -> None:
    """(The kernel lets no test run a frame with less than an IP header.)"""
    client, vip, _, _ = peers.connected(node)
    frame = bytes(LINK / peers.data(client, vip))
    states = node.states()
    begin = len(LINK) + header_length(peers)
    for end in range(begin, begin + 4):
        assert passes(node, frame[:end], hook), end
    assert node.states() == states


OPTIONS: dict[str, list[Packet]] = {
    "no option": [],
    "another option": [ICMPv6NDOptMTU()],
    "the link address alone": [ICMPv6NDOptDstLLAddr(lladdr="02:00:00:00:00:09")],
    "another option behind the link address": [
        ICMPv6NDOptDstLLAddr(lladdr="02:00:00:00:00:09"),
        ICMPv6NDOptMTU(),
    ],
}


@pytest.mark.parametrize("options", OPTIONS)
def test_a_redirect_that_quotes_nothing_passes_unchanged(
    node: Node, ipv6_peers: Peers, options: str
) -> None:
    peers = ipv6_peers
    client, _, backend, _ = peers.connected(node, outside=True)
    message: Packet = ICMPv6ND_Redirect(tgt=peers.router, dst=address_of(backend))
    for option in OPTIONS[options]:
        message = message / option
    sent = bytes(LINK / ip(peers.node_address, address_of(client)) / message)
    assert passes(node, sent, "egress")
    assert node.counter("dropped__redirects") == 0


def test_a_redirect_that_quotes_nothing_is_not_read_as_its_own_quote(node: Node) -> None:
    """Its frame has, where an IPv6 header would begin with it, the ends of a connection of TCP."""
    link = Ether(src="06:00:fd:44:00:00", dst=LINK.dst)
    message = ICMPv6ND_Redirect(tgt=TCP_PEERS[1].router, dst=address_of(TCP_PEERS[1].backend))
    sent = bytes(link / ip("fd50:fd44::2:d:e:f", "7:9c40:1f90::5") / message)
    source, destination, port, to_port = struct.unpack_from("!16s16sHH", sent, 8)
    client, backend = endpoint_text(source, port), endpoint_text(destination, to_port)
    replace(TCP_PEERS[1], client=client, backend=backend).connected(node)
    assert passes(node, sent, "egress")


def test_a_redirect_that_is_cut_off_passes_unchanged(node: Node, ipv6_peers: Peers) -> None:
    """Whole, it is dropped."""
    peers = ipv6_peers
    client, _, backend, _ = peers.connected(node, outside=True)
    about = bytes(peers.data(client, backend))
    about += bytes(-len(about) % 8)
    message = ICMPv6ND_Redirect(tgt=peers.router, dst=address_of(backend))
    option = ICMPv6NDOptDstLLAddr(lladdr="02:00:00:00:00:09")
    quoted = ICMPv6NDOptRedirectedHdr(len=1 + len(about) // 8, pkt=Raw(about))
    whole = ip(peers.node_address, address_of(client)) / message / option / quoted
    sent = bytes(LINK / whole)
    quote = len(LINK) + 40 + 40 + 8 + 8
    for end in range(len(LINK) + 40, quote + 40 + 4):
        assert passes(node, sent[:end], "egress"), end
    assert node.run_frame("egress", sent)[0] != UNSPEC
    assert node.counter("dropped__redirects") == 1


def test_an_error_that_quotes_another_protocol_passes_unchanged(
    node: Node, tcp_peers: Peers
) -> None:
    peers = tcp_peers
    client, _, backend, _ = peers.connected(node)
    about = ip(address_of(client), address_of(backend)) / ICMP()
    if peers.family == 6:
        about.nh = 1
    arrives = bytes(LINK / error(peers.router, address_of(client), about))
    assert passes(node, arrives, "egress")
