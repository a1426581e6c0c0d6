"""What may stand between an IP header and the transport: options and extension headers.

They pass unchanged, and what they stand before is translated as if they were not there.
"""

from __future__ import annotations

import pytest
from scapy.layers.inet import IPOption_NOP, IPOption_RR
from scapy.layers.inet6 import (
    HBHOptUnknown,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
    RouterAlert,
)
from scapy.packet import Packet, Raw

from tests.packets.headers import authentication, with_headers
from tests.packets.node import Node, same
from tests.packets.scene import Scene

HOP_BY_HOP = IPv6ExtHdrHopByHop(options=[RouterAlert()])
DESTINATION = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(12))])
LONG = IPv6ExtHdrDestOpt(options=[HBHOptUnknown(otype=30, optdata=b"o" * 250)] * 4)
ROUTING = IPv6ExtHdrRouting(addresses=["fd00::1", "fd00::2"], segleft=0)

HEADERS: dict[str, list[Packet]] = {
    "hop-by-hop options": [HOP_BY_HOP],
    "destination options": [DESTINATION],
    "a routing header that was followed to its end": [ROUTING],
    "authentication": [authentication(12)],
    "a longer authentication": [authentication(36)],
    "long options": [LONG],
    "all of them": [HOP_BY_HOP, DESTINATION, ROUTING, authentication(12), DESTINATION],
    "as many as are read": [IPv6ExtHdrDestOpt()] * 8,
}


def translated(node: Node, scene: Scene, change: list[Packet]) -> bool:
    """Open a masqueraded connection with such packets only, and use it."""
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend], masquerade=True)

    def longer(packet: Packet) -> Packet:
        if scene.family == 6:
            return with_headers(packet, *change)
        packet.options = change
        return packet

    opening = scene.opening(client, vip)
    ports = -len(bytes(opening.payload))
    out = node.forward(longer(opening))
    seen = scene.node_place(int.from_bytes(bytes(out)[ports:][:2], "big"))
    exchange = [
        (scene.opening(client, vip), scene.opening(seen, backend)),
        (scene.answer(backend, seen), scene.answer(vip, client)),
        (scene.data(client, vip), scene.data(seen, backend)),
        (scene.data(backend, seen), scene.data(vip, client)),
    ]
    return same(out, longer(scene.opening(seen, backend))) and all(
        same(node.forward(longer(comes)), longer(goes)) for comes, goes in exchange
    )


@pytest.mark.parametrize("name", HEADERS)
def test_ipv6_extension_headers_do_not_hide_a_connection(
    node: Node, ipv6_scene: Scene, name: str
) -> None:
    assert translated(node, ipv6_scene, HEADERS[name])


@pytest.mark.parametrize("count", [1, 4, 37, 40])
def test_ipv4_options_do_not_hide_a_connection(node: Node, ipv4_scene: Scene, count: int) -> None:
    assert translated(node, ipv4_scene, [IPOption_NOP()] * count)


def test_a_route_recorded_in_an_ipv4_option_stays_as_it_is(node: Node, ipv4_scene: Scene) -> None:
    route = IPOption_RR(length=11, pointer=12, routers=["10.0.0.1", "10.0.0.2"])
    assert translated(node, ipv4_scene, [route])


UNREAD: dict[str, list[Packet]] = {
    "more headers than are read": [IPv6ExtHdrDestOpt()] * 9,
    "a header that is longer than its packet": [IPv6ExtHdrDestOpt(len=200)],
    "an authentication that is longer than its packet": [authentication(12, units=255)],
}


@pytest.mark.parametrize("name", UNREAD)
def test_what_is_not_read_to_its_end_passes_as_it_is(
    node: Node, ipv6_scene: Scene, name: str
) -> None:
    scene = ipv6_scene
    scene.service(node, [scene.backend], guarded=True)
    for byte in (0, 1):
        node.fill_filter(byte)
        for opening in (
            scene.opening(scene.client, scene.vip),
            scene.opening(scene.client, scene.at(scene.vip, 81)),
        ):
            packet = with_headers(opening, *UNREAD[name])
            assert same(node.forward(packet), packet)
    assert node.states() == (0, 0)


@pytest.mark.parametrize("protocol", [50, 59, 135, 253], ids=["ESP", "nothing", "mobility", "?"])
def test_what_is_not_followed_by_a_transport_passes_as_it_is(
    node: Node, ipv6_scene: Scene, protocol: int
) -> None:
    ipv6_scene.service(node, [ipv6_scene.backend])
    opening = ipv6_scene.opening(ipv6_scene.client, ipv6_scene.vip)
    other = IPv6(src=opening.src, dst=opening.dst, nh=protocol) / Raw(bytes(opening.payload))
    packet = with_headers(other, DESTINATION)
    assert same(node.forward(packet), packet)


def test_a_connection_may_have_packets_with_and_without_headers(
    node: Node, ipv6_scene: Scene
) -> None:
    scene = ipv6_scene
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    for headers in ([], [HOP_BY_HOP], [], [ROUTING, DESTINATION]):
        there = with_headers(scene.data(scene.client, scene.vip), *headers)
        wanted = with_headers(scene.data(scene.client, scene.backend), *headers)
        assert same(node.forward(there), wanted)
        back = with_headers(scene.data(scene.backend, scene.client), *headers)
        wanted = with_headers(scene.data(scene.vip, scene.client), *headers)
        assert same(node.forward(back), wanted)
