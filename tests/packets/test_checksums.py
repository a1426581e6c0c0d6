"""Checksums, where a wrong one would go unnoticed until a client complains.

All other tests compare whole packets and so check the ordinary checksums too.
"""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.packets.node import Node, same, udp
from tests.packets.scene import Scene


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 1399, 1472, 3001])
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_payloads_of_any_size_keep_a_right_checksum(
    node: Node, scene: Scene, size: int, masquerade: bool
) -> None:
    payload = bytes(number * 7 & 0xFF for number in range(size))
    scene.service(node, [scene.backend], masquerade=masquerade)
    seen = scene.connect(node, scene.stranger, scene.vip, scene.backend)
    out = node.forward(scene.data(scene.stranger, scene.vip, payload))
    assert same(out, scene.data(seen, scene.backend, payload))
    back = node.forward(scene.data(scene.backend, seen, payload))
    assert same(back, scene.data(scene.vip, scene.stranger, payload))


def without_checksum(packet: Packet) -> Packet:
    packet.payload.chksum = 0
    return packet


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_udp_without_a_checksum_stays_without(
    node: Node, udp_scene: Scene, masquerade: bool
) -> None:
    client, vip, backend = udp_scene.stranger, udp_scene.vip, udp_scene.backend
    udp_scene.service(node, [backend], masquerade=masquerade)
    out = node.forward(without_checksum(udp(client, vip)))
    seen = udp_scene.at(out.src, out.payload.sport)
    assert same(out, without_checksum(udp(seen, backend)))
    back = node.forward(without_checksum(udp(backend, seen)))
    assert same(back, without_checksum(udp(vip, client)))


def test_a_udp_checksum_that_becomes_zero_is_sent_as_all_ones(node: Node, udp_scene: Scene) -> None:
    """RFC 768: zero would mean that there is none."""
    client, vip, backend = udp_scene.client, udp_scene.vip, udp_scene.backend
    udp_scene.service(node, [backend])
    without = udp(client, backend, b"\0\0")
    sum_of_the_rest = type(without)(bytes(without)).payload.chksum
    payload = sum_of_the_rest.to_bytes(2, "big")
    out = node.forward(udp(client, vip, payload))
    assert out.payload.chksum == 0xFFFF
    assert same(out, udp(client, backend, payload))


def test_a_udp_checksum_of_all_ones_is_no_missing_checksum(node: Node, udp_scene: Scene) -> None:
    client, vip, backend = udp_scene.client, udp_scene.vip, udp_scene.backend
    udp_scene.service(node, [backend])
    without = udp(client, vip, b"\0\0")
    payload = type(without)(bytes(without)).payload.chksum.to_bytes(2, "big")
    arrived = udp(client, vip, payload)
    assert type(arrived)(bytes(arrived)).payload.chksum == 0xFFFF
    assert same(node.forward(arrived), udp(client, backend, payload))


def test_a_wrong_checksum_stays_wrong(node: Node, scene: Scene) -> None:
    """The receiver shall notice; a checksum made anew would hide what happened on the way."""
    scene.service(node, [scene.backend])
    arrived = scene.opening(scene.client, scene.vip)
    right = type(arrived)(bytes(arrived)).payload.chksum
    arrived.payload.chksum = right ^ 0x0101
    out = node.forward(arrived)
    assert out.payload.chksum not in (
        0,
        type(arrived)(bytes(scene.opening(scene.client, scene.backend))).payload.chksum,
    )
