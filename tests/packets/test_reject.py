"""A client hears at once that nobody is home: by an ICMP error that quotes its packet, or a reset.

Every wanted frame is scapy's own, checksums included.
"""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, IPOption_NOP
from scapy.layers.inet6 import IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop, PadN
from scapy.packet import Packet

from bpfsvc.rows import Policies, Policy
from tests.packets.errors import error
from tests.packets.node import LINK, REDIRECT, SHOT, UNSPEC, Node, ip, same, tcp, udp
from tests.packets.refusals import QUOTED, refused, unreachable
from tests.packets.scene import Scene, bare


@pytest.fixture
def empty(node: Node, scene: Scene) -> Node:
    """A node with a Service that has no endpoints anywhere."""
    scene.service(node, [])
    return node


@pytest.mark.parametrize("who", ["pod", "node", "stranger"])
def test_every_client_is_told(empty: Node, scene: Scene, who: str) -> None:
    client = {"pod": scene.client, "node": scene.node_place(40000), "stranger": scene.stranger}[who]
    assert refused(empty, scene.opening(client, scene.vip))
    assert empty.counter("rejected__no_endpoints") == 1
    assert empty.counter("dropped__reject_failed") == empty.counter("dropped__no_endpoints") == 0
    assert empty.states() == (0, 0)


def test_each_class_of_clients_is_told_or_not(node: Node, scene: Scene) -> None:
    told, silent = Policy(0, 0, False, True), Policy(0, 0, False, False)
    policies = Policies(pod=silent, node=told, other=silent)
    scene.service(node, [], frontends=[scene.vip], policies=policies)
    assert node.drops("ingress", scene.opening(scene.client, scene.vip))
    assert node.drops("ingress", scene.opening(scene.stranger, scene.vip))
    assert refused(node, scene.opening(scene.node_place(40000), scene.vip))


def test_a_node_port_without_endpoints_refuses_as_the_address_that_was_asked(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [], node_port=30080)
    assert refused(node, scene.opening(scene.stranger, scene.node_place(30080)))


@pytest.mark.parametrize("size", [*range(9), 57, 79, 80, 81, 99, 100, 101, 1399, 3001])
def test_a_payload_of_any_size_is_quoted_up_to_a_bound(
    node: Node, udp_scene: Scene, size: int
) -> None:
    udp_scene.service(node, [])
    payload = bytes(number * 7 + 1 & 0xFF for number in range(size))
    packet = udp(udp_scene.stranger, udp_scene.vip, payload)
    assert refused(node, packet)
    assert len(unreachable(packet)) <= 48 + QUOTED


@pytest.mark.parametrize("size", [1, 2, 5, 18])
def test_the_padding_of_a_short_frame_is_not_quoted(
    node: Node, udp_scene: Scene, size: int
) -> None:
    udp_scene.service(node, [])
    packet = udp(udp_scene.stranger, udp_scene.vip, b"x" * size)
    assert refused(node, packet, trailer=bytes(19 - size))


def test_what_follows_a_packet_in_its_frame_is_no_part_of_it(empty: Node, scene: Scene) -> None:
    for size in (1, 4, 6):
        packet = scene.opening(scene.stranger, scene.vip)
        assert refused(empty, packet, trailer=b"\xa5" * size)


OPTIONS = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1, 0)), ("NOP", None), ("WScale", 7)]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 16, 20, 24, 1000])
@pytest.mark.parametrize(
    "options", [[], OPTIONS, [("NOP", None)] * 40], ids=["none", "usual", "all"]
)
def test_a_segment_with_data_and_options_is_refused_as_well(
    node: Node, tcp_scene: Scene, size: int, options: list[tuple[str, object]]
) -> None:
    tcp_scene.service(node, [])
    data = bytes(number * 7 + 1 & 0xFF for number in range(size))
    packet = tcp(tcp_scene.stranger, tcp_scene.vip, "SEC", data)
    packet.payload.options = options
    packet.payload.seq = 0xFFFFFFF8
    packet.payload.urgptr = 7
    assert refused(node, packet)


@pytest.mark.parametrize("hops", [1, 5, 255])
def test_the_answer_comes_as_far_as_any_packet_of_ours(node: Node, scene: Scene, hops: int) -> None:
    """Though there be few hops left of what it answers."""
    scene.service(node, [])
    packet = scene.opening(scene.stranger, scene.vip)
    if scene.family == 6:
        packet.hlim, packet.tc, packet.fl = hops, 3, 0x12345
    else:
        packet.ttl, packet.tos, packet.flags = hops, 3, "DF"
    assert refused(node, packet)


@pytest.mark.parametrize("flags", ["A", "PA", "FA", "R", "RA", "SA", ""])
def test_only_a_segment_that_opens_a_connection_is_refused(
    node: Node, tcp_scene: Scene, flags: str
) -> None:
    tcp_scene.service(node, [])
    packet = tcp(tcp_scene.stranger, tcp_scene.vip, flags)
    assert same(node.forward(packet), packet)


@pytest.mark.parametrize("count", [1, 4, 12, 40])
def test_a_packet_with_ip_options_is_quoted_with_them(
    node: Node, ipv4_scene: Scene, count: int
) -> None:
    ipv4_scene.service(node, [])
    packet = ipv4_scene.opening(ipv4_scene.stranger, ipv4_scene.vip)
    packet.options = [IPOption_NOP()] * count
    assert refused(node, packet)


@pytest.mark.parametrize("padding", [0, 8, 80, 120, 240])
def test_a_packet_with_extension_headers_is_quoted_with_them(
    node: Node, ipv6_scene: Scene, padding: int
) -> None:
    """As many of them as there is room for, though the ports come later."""
    ipv6_scene.service(node, [])
    options = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(padding))])
    opening = ipv6_scene.opening(ipv6_scene.stranger, ipv6_scene.vip)
    assert refused(node, opening, IPv6ExtHdrHopByHop(), options)


def fragment(packet: Packet, offset: int, more: int) -> Packet:
    """Make a fragment of a packet's first bytes, said to stand elsewhere."""
    if packet.version == 4:
        return IP(
            src=packet.src, dst=packet.dst, proto=packet.proto, id=7, frag=offset, flags=more
        ) / bytes(packet.payload)
    header = IPv6ExtHdrFragment(offset=offset, m=more, id=7, nh=packet.nh)
    return ip(packet.src, packet.dst) / header / bytes(packet.payload)


def test_the_first_fragment_is_refused_and_the_others_are_nobodys(
    empty: Node, scene: Scene
) -> None:
    packet = scene.opening(scene.stranger, scene.vip)
    packet = type(packet)(bytes(packet))
    first, later = fragment(packet, 0, 1), fragment(packet, 8, 0)
    assert refused(empty, first)
    assert same(empty.ingress(later), later)
    assert empty.counter("rejected__no_endpoints") == 1


NOBODYS = {
    4: [
        "0.0.0.0",
        "0.1.2.3",
        "127.0.0.1",
        "224.0.0.5",
        "239.1.1.1",
        "240.0.0.1",
        "255.255.255.255",
    ],
    6: ["::", "::1", "ff02::1", "ff0e::5"],
}
ALMOST_NOBODYS = {
    4: ["1.0.0.1", "126.1.1.1", "128.0.0.1", "223.255.255.255"],
    6: ["1::", "fe80::1"],
}


def test_who_sends_from_an_address_that_is_no_single_hosts_is_told_nothing(
    empty: Node, scene: Scene
) -> None:
    for source in NOBODYS[scene.family]:
        packet = scene.opening(scene.at(source, 40000), scene.vip)
        verdict, _ = empty.run("ingress", packet)
        assert (source, verdict) == (source, SHOT)
    for source in ALMOST_NOBODYS[scene.family]:
        assert refused(empty, scene.opening(scene.at(source, 40000), scene.vip))


def test_an_error_about_a_refused_packet_is_not_refused(empty: Node, scene: Scene) -> None:
    """RFC 1122, 3.2.2: errors are not answered with errors."""
    packet = error(bare(scene.stranger), bare(scene.vip), scene.opening(scene.vip, scene.stranger))
    assert same(empty.forward(packet), packet)


def test_what_goes_out_is_never_refused(empty: Node, scene: Scene) -> None:
    """It met its verdict where it came in, or at the socket."""
    for byte in (0, 1):
        empty.fill_filter(byte)
        packet = scene.opening(scene.client, scene.vip)
        assert same(empty.egress(packet), packet)


def test_the_refusal_itself_leaves_the_node_as_it_is(empty: Node, scene: Scene) -> None:
    verdict, frame = empty.run_frame(
        "ingress", bytes(LINK / scene.opening(scene.stranger, scene.vip))
    )
    assert verdict == REDIRECT
    assert empty.run_frame("egress", frame) == (UNSPEC, frame)
