"""ICMPv6 messages behind long extension headers: what is read begins behind byte 255."""

from __future__ import annotations

import pytest
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6ExtHdrDestOpt, PadN
from scapy.packet import Packet

from tests.packets.extension_headers import with_headers
from tests.packets.icmp_errors import error
from tests.packets.node import REDIRECT, Node
from tests.packets.packet import ip
from tests.packets.peers import UDP_PEERS, address_of
from tests.packets.test_echo import ECHO

SIZES = pytest.mark.parametrize("size", [4, 100, 180, 250])


def padded(packet: Packet, size: int) -> Packet:
    """Return a packet with an extension header that has ``size`` bytes of padding."""
    return with_headers(packet, IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(size))]))


@SIZES
def test_a_ping_with_a_long_header_is_answered(node: Node, size: int) -> None:
    peers = UDP_PEERS[1]
    peers.service(node, [peers.backend], frontends=[peers.vip], policies=ECHO, guarded=True)
    request = ip(address_of(peers.external), address_of(peers.vip)) / ICMPv6EchoRequest(id=7)
    verdict, after = node.run("ingress", padded(request, size))
    assert verdict == REDIRECT
    assert after.dst == address_of(peers.external)


@SIZES
def test_an_error_with_a_long_header_reaches_the_client(node: Node, size: int) -> None:
    peers = UDP_PEERS[1]
    client, _, backend, seen = peers.connected(node, outside=True, masquerade=True)
    about = error(peers.router, address_of(seen), peers.data(seen, backend))
    assert node.ingress(about).dst == address_of(client)
    assert node.ingress(padded(about, size)).dst == address_of(client)
