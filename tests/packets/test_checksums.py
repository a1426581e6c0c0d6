"""Checksums, where a wrong one would go unnoticed until a client fails.

All other tests compare whole packets and so check the ordinary checksums too.
"""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.packets.node import Node
from tests.packets.packet import same, udp
from tests.packets.peers import Peers


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 1399, 1472, 3001])
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_payloads_of_any_size_keep_a_correct_checksum(
    node: Node, peers: Peers, size: int, masquerade: bool
) -> None:
    payload = bytes(number * 7 & 0xFF for number in range(size))
    peers.service(node, [peers.backend], masquerade=masquerade)
    seen = peers.connect(node, peers.external, peers.vip, peers.backend)
    out = node.forward(peers.data(peers.external, peers.vip, payload))
    assert same(out, peers.data(seen, peers.backend, payload))
    back = node.forward(peers.data(peers.backend, seen, payload))
    assert same(back, peers.data(peers.vip, peers.external, payload))


def without_checksum(packet: Packet) -> Packet:
    packet.payload.chksum = 0
    return packet


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_udp_without_a_checksum_stays_without_one(
    node: Node, udp_peers: Peers, masquerade: bool
) -> None:
    client, vip, backend = udp_peers.served(node, outside=True, masquerade=masquerade)
    out = node.forward(without_checksum(udp(client, vip)))
    seen = udp_peers.with_port(out.src, out.payload.sport)
    assert same(out, without_checksum(udp(seen, backend)))
    back = node.forward(without_checksum(udp(backend, seen)))
    assert same(back, without_checksum(udp(vip, client)))


def test_a_udp_checksum_that_becomes_zero_is_sent_as_all_ones(node: Node, udp_peers: Peers) -> None:
    """RFC 768: zero would mean that there is no checksum."""
    client, vip, backend = udp_peers.served(node)
    without = udp(client, backend, b"\0\0")
    sum_of_the_rest = type(without)(bytes(without)).payload.chksum
    payload = sum_of_the_rest.to_bytes(2, "big")
    out = node.forward(udp(client, vip, payload))
    assert out.payload.chksum == 0xFFFF
    assert same(out, udp(client, backend, payload))


def test_a_udp_checksum_of_all_ones_is_a_checksum(node: Node, udp_peers: Peers) -> None:
    client, vip, backend = udp_peers.served(node)
    without = udp(client, vip, b"\0\0")
    payload = type(without)(bytes(without)).payload.chksum.to_bytes(2, "big")
    arrived = udp(client, vip, payload)
    assert type(arrived)(bytes(arrived)).payload.chksum == 0xFFFF
    assert same(node.forward(arrived), udp(client, backend, payload))


def test_a_wrong_checksum_stays_wrong(node: Node, peers: Peers) -> None:
    """The receiver must notice; a newly computed checksum would hide the damage."""
    peers.service(node, [peers.backend])
    arrived = peers.opening(peers.client, peers.vip)
    right = type(arrived)(bytes(arrived)).payload.chksum
    arrived.payload.chksum = right ^ 0x0101
    out = node.forward(arrived)
    assert out.payload.chksum not in (
        0,
        type(arrived)(bytes(peers.opening(peers.client, peers.backend))).payload.chksum,
    )
