"""Options and extension headers between the IP header and the transport.

They pass unchanged, and the packet is translated as if they were not there.
"""

from __future__ import annotations

import pytest
from scapy.layers.inet import IPOption_NOP, IPOption_RR
from scapy.layers.inet6 import (
    HBHOptUnknown,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
    RouterAlert,
)
from scapy.packet import Packet, Raw

from tests.packets.extension_headers import authentication, with_headers
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import ALL_PEERS, Peers

HOP_BY_HOP = IPv6ExtHdrHopByHop(options=[RouterAlert()])
DESTINATION = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(12))])
LONG = IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=30, optdata=b"o" * 250)] * 4)
ROUTING = IPv6ExtHdrRouting(addresses=["fd00::1", "fd00::2"], segleft=0)

HEADERS: dict[str, list[Packet]] = {
    "hop-by-hop options": [HOP_BY_HOP],
    "destination options": [DESTINATION],
    "a finished routing header": [ROUTING],
    "authentication": [authentication(12)],
    "a longer authentication": [authentication(36)],
    "long options": [LONG],
    "all of them": [HOP_BY_HOP, DESTINATION, ROUTING, authentication(12), DESTINATION],
    "as many as are read": [IPv6ExtHdrDestOpt()] * 8,
}


def translated(node: Node, peers: Peers, change: list[Packet]) -> bool:
    """Open and use a masqueraded connection; all its packets have such headers."""
    client, vip, backend = peers.served(node, outside=True, masquerade=True)

    def longer(packet: Packet) -> Packet:
        if peers.family == 6:
            return with_headers(packet, *change)
        packet.options = change
        return packet

    opening = peers.opening(client, vip)
    ports = -len(bytes(opening.payload))
    out = node.forward(longer(opening))
    seen = peers.on_node(int.from_bytes(bytes(out)[ports:][:2], "big"))
    exchange = [
        (peers.opening(client, vip), peers.opening(seen, backend)),
        (peers.answer(backend, seen), peers.answer(vip, client)),
        (peers.data(client, vip), peers.data(seen, backend)),
        (peers.data(backend, seen), peers.data(vip, client)),
    ]
    return same(out, longer(peers.opening(seen, backend))) and all(
        same(node.forward(longer(comes)), longer(goes)) for comes, goes in exchange
    )


@pytest.mark.parametrize("name", HEADERS)
def test_ipv6_extension_headers_do_not_hide_a_connection(
    node: Node, ipv6_peers: Peers, name: str
) -> None:
    assert translated(node, ipv6_peers, HEADERS[name])


@pytest.mark.parametrize("count", [1, 4, 37, 40])
def test_ipv4_options_do_not_hide_a_connection(node: Node, ipv4_peers: Peers, count: int) -> None:
    assert translated(node, ipv4_peers, [IPOption_NOP()] * count)


def test_a_route_recorded_in_an_ipv4_option_stays_as_it_is(node: Node, ipv4_peers: Peers) -> None:
    route = IPOption_RR(length=11, pointer=12, routers=["10.0.0.1", "10.0.0.2"])
    assert translated(node, ipv4_peers, [route])


UNREAD: dict[str, list[Packet]] = {
    "more headers than are read": [IPv6ExtHdrDestOpt()] * 9,
    "a header that is longer than its packet": [IPv6ExtHdrDestOpt(len=200)],
    "an authentication that is longer than its packet": [authentication(12, units=255)],
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_packet_whose_headers_are_not_read_to_the_end_passes_unchanged(
    node: Node, ipv6_peers: Peers, name: str
) -> None:
    peers = ipv6_peers
    peers.service(node, [peers.backend], guarded=True)
    for byte in (0, 1):
        node.fill_filter(byte)
        for opening in (
            peers.opening(peers.client, peers.vip),
            peers.opening(peers.client, peers.with_port(peers.vip, 81)),
        ):
            packet = with_headers(opening, *UNREAD[name])
            assert same(node.forward(packet), packet)
    assert node.states() == (0, 0)


@pytest.mark.parametrize("header", [IPv6ExtHdrDestOpt(), IPv6ExtHdrFragment(offset=0, m=1)])
@pytest.mark.parametrize("rest", [0, 1])
def test_a_packet_that_ends_within_a_header_passes_unchanged(
    node: Node, header: Packet, rest: int
) -> None:
    peers = ALL_PEERS[1]
    assert peers.family == 6
    peers.service(node, [peers.backend], guarded=True)
    opening = peers.opening(peers.client, peers.vip)
    whole = bytes(with_headers(opening, DESTINATION, header))
    at = 40 + len(bytes(DESTINATION)) + rest
    packet = IPv6(whole[:at])
    assert same(node.ingress(packet), packet)
    assert node.states() == (0, 0)


@pytest.mark.parametrize("protocol", [50, 59, 135, 253], ids=["ESP", "nothing", "mobility", "?"])
def test_headers_without_a_transport_behind_them_pass_unchanged(
    node: Node, ipv6_peers: Peers, protocol: int
) -> None:
    ipv6_peers.service(node, [ipv6_peers.backend])
    opening = ipv6_peers.opening(ipv6_peers.client, ipv6_peers.vip)
    other = IPv6(src=opening.src, dst=opening.dst, nh=protocol) / Raw(bytes(opening.payload))
    packet = with_headers(other, DESTINATION)
    assert same(node.forward(packet), packet)


def test_a_connection_may_have_packets_with_and_without_headers(
    node: Node, ipv6_peers: Peers
) -> None:
    peers = ipv6_peers
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    for headers in ([], [HOP_BY_HOP], [], [ROUTING, DESTINATION]):
        there = with_headers(peers.data(peers.client, peers.vip), *headers)
        wanted = with_headers(peers.data(peers.client, peers.backend), *headers)
        assert same(node.forward(there), wanted)
        back = with_headers(peers.data(peers.backend, peers.client), *headers)
        wanted = with_headers(peers.data(peers.vip, peers.client), *headers)
        assert same(node.forward(back), wanted)
