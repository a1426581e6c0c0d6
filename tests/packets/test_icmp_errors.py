"""ICMP errors about translated packets reach the sender, which recognises its packet.

In each test the error quotes the packet as its author saw it. The checksums of the wanted packets
are scapy's own; the quoted transport checksum stays unchanged.
"""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, TCP, IPOption_NOP
from scapy.layers.inet6 import (
    ICMPv6ND_Redirect,
    ICMPv6NDOptDstLLAddr,
    ICMPv6NDOptRedirectedHdr,
)
from scapy.packet import Packet, Raw

from tests.packets.icmp_errors import KINDS, error
from tests.packets.node import Node
from tests.packets.packet import ip, same, tcp
from tests.packets.peers import Peers, address_of

ABOUT = pytest.mark.parametrize("kind", KINDS)
QUOTED = pytest.mark.parametrize("transport", [0, 8], ids=["all quoted", "8 bytes quoted"])


@ABOUT
@QUOTED
def test_an_error_from_a_router_about_a_packet_to_a_backend(
    node: Node, peers: Peers, kind: str, transport: int
) -> None:
    client, vip, backend, _ = peers.connected(node)
    arrived = error(peers.router, address_of(client), peers.data(client, backend), kind, transport)
    assert same(node.ingress(arrived), arrived)
    wanted = error(peers.router, address_of(client), peers.data(client, vip), kind, transport)
    assert same(node.egress(arrived), wanted)
    assert node.counter("icmp_errors_translated") == 1


@ABOUT
def test_an_error_from_the_backend_arrives_as_from_the_frontend(
    node: Node, peers: Peers, kind: str
) -> None:
    client, vip, backend = peers.served(node)
    node.forward(peers.opening(client, vip))
    arrived = error(address_of(backend), address_of(client), peers.opening(client, backend), kind)
    wanted = error(address_of(vip), address_of(client), peers.opening(client, vip), kind)
    assert same(node.forward(arrived), wanted)


@ABOUT
@QUOTED
def test_an_error_from_a_router_about_a_masqueraded_packet(
    node: Node, peers: Peers, kind: str, transport: int
) -> None:
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    arrived = error(peers.router, peers.node_address, peers.data(seen, backend), kind, transport)
    routed = node.ingress(arrived)
    assert same(
        routed,
        error(peers.router, address_of(client), peers.data(client, backend), kind, transport),
    )
    wanted = error(peers.router, address_of(client), peers.data(client, vip), kind, transport)
    assert same(node.egress(routed), wanted)


def test_an_error_from_the_backend_about_a_masqueraded_packet(node: Node, peers: Peers) -> None:
    client, vip, backend = peers.served(node, outside=True, masquerade=True)
    out = node.forward(peers.opening(client, vip))
    arrived = error(address_of(backend), peers.node_address, out, "port unreachable")
    wanted = error(
        address_of(vip), address_of(client), peers.opening(client, vip), "port unreachable"
    )
    assert same(node.forward(arrived), wanted)


@ABOUT
@QUOTED
def test_an_error_from_a_router_about_a_reply(
    node: Node, peers: Peers, kind: str, transport: int
) -> None:
    """The reply left with the frontend's address, so the error is sent there."""
    client, vip, backend, _ = peers.connected(node, outside=True)
    arrived = error(peers.router, address_of(vip), peers.data(vip, client), kind, transport)
    wanted = error(peers.router, address_of(backend), peers.data(backend, client), kind, transport)
    assert same(node.forward(arrived), wanted)


def test_an_error_from_a_router_about_a_reply_to_a_masqueraded_client(
    node: Node, peers: Peers
) -> None:
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    routed = node.ingress(error(peers.router, address_of(vip), peers.data(vip, client)))
    assert same(routed, error(peers.router, address_of(backend), peers.data(backend, client)))
    wanted = error(peers.router, address_of(backend), peers.data(backend, seen))
    assert same(node.egress(routed), wanted)


def test_an_error_from_the_masqueraded_client_arrives_as_from_the_node(
    node: Node, peers: Peers
) -> None:
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    arrived = error(
        address_of(client), address_of(vip), peers.data(vip, client), "port unreachable"
    )
    wanted = error(
        peers.node_address, address_of(backend), peers.data(backend, seen), "port unreachable"
    )
    assert same(node.forward(arrived), wanted)


def test_an_error_about_a_direct_connection_with_a_changed_port(node: Node, peers: Peers) -> None:
    client, backend = peers.client, peers.backend
    peers.service(node, [backend])
    peers.connect(node, client, peers.vip, backend)
    out = node.forward(peers.opening(client, backend))
    wanted = error(peers.router, address_of(client), peers.opening(client, backend))
    assert same(node.forward(error(peers.router, address_of(client), out)), wanted)


@ABOUT
def test_an_error_about_an_unknown_connection_passes_unchanged(
    node: Node, peers: Peers, kind: str
) -> None:
    peers.service(node, [peers.backend])
    for about in (
        peers.data(peers.client, peers.backend),
        peers.data(peers.vip, peers.client),
        peers.data(peers.on_node(20000), peers.backend),
    ):
        arrived = error(peers.router, about.src, about, kind)
        assert same(node.forward(arrived), arrived)
    assert node.counter("icmp_errors_translated") == 0


def test_an_error_about_another_protocol_passes_unchanged(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    about = error(
        address_of(peers.client), address_of(peers.backend), peers.data(peers.client, peers.backend)
    )
    arrived = error(peers.router, address_of(peers.client), about)
    assert same(node.forward(arrived), arrived)


def test_an_error_about_an_error_passes_unchanged(node: Node, peers: Peers) -> None:
    """Nobody sends one (RFC 1122, 3.2.2), so its quote proves nothing."""
    client, backend = peers.external, peers.backend
    peers.connected(node, outside=True)
    about = error(peers.router, address_of(client), peers.data(backend, client))
    packet = error(address_of(client), peers.router, about)
    assert same(node.forward(packet), packet)


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_neither_establishes_nor_renews_a_connection(
    node: Node, peers: Peers, kind: str
) -> None:
    """Anybody may send one who has seen or guessed the ports."""
    node.settings(half_open_seconds=7)
    client, vip, backend = peers.served(node)
    about = node.forward(peers.opening(client, vip))
    flow = node.flow("ingress", peers.opening(client, vip))
    node.age(8)
    node.forward(error(peers.router, address_of(client), about, kind))
    node.forward(error(peers.router, address_of(backend), peers.answer(backend, client), kind))
    assert node.states() == (2, 0)
    assert node.collect(flow) == 1


def test_the_quoted_packet_may_have_ip_options(node: Node) -> None:
    node.service("web", ["10.244.2.7:8080"], frontends=["10.96.0.10:80"])
    node.forward(tcp("10.244.1.5:40000", "10.96.0.10:80"))
    options = [IPOption_NOP()] * 12

    def quoting(destination: str, port: int) -> Packet:
        about = IP(src="10.244.1.5", dst=destination, options=options)
        return error("172.16.0.1", "10.244.1.5", about / TCP(sport=40000, dport=port, flags="S"))

    assert same(node.forward(quoting("10.244.2.7", 8080)), quoting("10.96.0.10", 80))


def test_the_quoted_packet_may_be_the_first_of_its_fragments(node: Node, ipv4_peers: Peers) -> None:
    peers = ipv4_peers
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)

    def quoting(destination: str) -> Packet:
        about = peers.data(peers.client, destination)
        about.flags = "MF"
        return error(peers.router, address_of(peers.client), about)

    assert same(node.forward(quoting(peers.backend)), quoting(peers.vip))


def test_an_error_about_a_later_fragment_passes_unchanged(node: Node, ipv4_peers: Peers) -> None:
    """The quoted bytes of a later fragment are no ports."""
    peers = ipv4_peers
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    about = peers.data(peers.client, peers.backend)
    about.frag = 100
    arrived = error(peers.router, address_of(peers.client), about)
    assert same(node.forward(arrived), arrived)


def test_an_error_about_a_packet_that_is_not_masqueraded_yet_passes_unchanged(
    node: Node, peers: Peers
) -> None:
    """The CNI may have masqueraded the packet instead, and then it translates the error."""
    peers.service(node, [peers.backend], masquerade=True)
    node.ingress(peers.opening(peers.external, peers.vip))
    about = peers.data(peers.backend, peers.external)
    arrived = error(peers.router, address_of(peers.backend), about)
    assert same(node.egress(arrived), arrived)


# -- redirects --


def redirect(
    source: str, destination: str, about: Packet, gateway: str, *, with_link: bool = False
) -> Packet:
    """Make a redirect about a packet; ``with_link``: with the gateway's hardware address (IPv6)."""
    if ":" not in source:
        return ip(source, destination) / ICMP(type=5, code=1, gw=gateway) / Raw(bytes(about))
    options = ICMPv6NDOptDstLLAddr(lladdr="02:00:00:00:00:09") if with_link else b""
    message = ICMPv6ND_Redirect(tgt=gateway, dst=about.dst)
    quote = bytes(about) + bytes(-len(bytes(about)) % 8)
    quoted = ICMPv6NDOptRedirectedHdr(len=1 + len(quote) // 8, pkt=Raw(quote))
    return ip(source, destination) / message / options / quoted


LINK_ADDRESS = pytest.mark.parametrize("with_link", [False, True], ids=["", "with link address"])


@LINK_ADDRESS
def test_a_redirect_about_a_translated_packet_is_dropped(
    node: Node, peers: Peers, with_link: bool
) -> None:
    """The node sends one where client and backend are behind the same interface.

    netfilter drops it, too: the client would learn of a backend, and it sends to the frontend.
    """
    client, vip, _ = peers.served(node, outside=True)
    routed = node.ingress(peers.opening(client, vip))
    sent = redirect(
        peers.node_address, address_of(client), routed, peers.router, with_link=with_link
    )
    assert node.drops("egress", sent)
    assert node.counter("dropped__redirects") == 1


@LINK_ADDRESS
def test_a_redirect_about_a_masqueraded_packet_is_dropped(
    node: Node, peers: Peers, with_link: bool
) -> None:
    client, _, backend, seen = peers.connected(node, outside=True, masquerade=True)
    routed = peers.data(client, backend)
    sent = redirect(
        peers.node_address, address_of(client), routed, peers.router, with_link=with_link
    )
    assert node.drops("egress", sent)
    about = peers.data(seen, backend)
    arrived = redirect(
        peers.router, peers.node_address, about, peers.other_backend.rpartition(":")[0].strip("[]")
    )
    assert node.drops("ingress", arrived)


@LINK_ADDRESS
def test_a_redirect_about_another_packet_passes_unchanged(
    node: Node, peers: Peers, with_link: bool
) -> None:
    client, backend = peers.external, peers.backend
    peers.service(node, [backend])
    about = peers.data(client, backend)
    sent = redirect(
        peers.node_address, address_of(client), about, peers.router, with_link=with_link
    )
    assert same(node.forward(sent), sent)


@ABOUT
def test_an_error_about_a_masqueraded_packet_is_translated_where_the_middle_may_be_fast(
    node: Node, peers: Peers, kind: str
) -> None:
    """The stack carries it: conntrack knows the connection."""
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    node.settings(established=1)
    arrived = error(peers.router, peers.node_address, peers.data(seen, backend), kind)
    routed = node.ingress(arrived)
    assert same(routed, error(peers.router, address_of(client), peers.data(client, backend), kind))
    wanted = error(peers.router, address_of(client), peers.data(client, vip), kind)
    assert same(node.egress(routed), wanted)
