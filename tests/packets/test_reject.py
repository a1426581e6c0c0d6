"""Without endpoints, a client gets an ICMP error that quotes its packet, or a reset, at once.

Every wanted frame is made by scapy, checksums included.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable

import pytest
from scapy.layers.inet import IP, IPOption_NOP
from scapy.layers.inet6 import (
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    PadN,
)
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.devtools.lab.patience import wait
from bpfsvc.services.entries import Policies, Policy
from tests.packets.fragment import cut
from tests.packets.icmp_errors import error
from tests.packets.node import REDIRECT, SHOT, UNSPEC, Node
from tests.packets.packet import LINK, ip, same, tcp, udp
from tests.packets.peers import TCP_PEERS, Peers, address_of
from tests.packets.refusals import QUOTED, refused, unreachable


@pytest.fixture
def empty(node: Node, peers: Peers) -> Node:
    """A node with a Service that has no endpoints anywhere."""
    peers.service(node, [])
    return node


@pytest.mark.parametrize("who", ["pod", "node", "stranger"])
def test_every_client_is_refused(empty: Node, peers: Peers, who: str) -> None:
    client = {"pod": peers.client, "node": peers.on_node(40000), "stranger": peers.external}[who]
    assert refused(empty, peers.opening(client, peers.vip))
    assert empty.counter("rejected__no_endpoints") == 1
    assert empty.counter("dropped__reject_failed") == empty.counter("dropped__no_endpoints") == 0
    assert empty.states() == (0, 0)


def test_each_class_of_clients_is_refused_or_not(node: Node, peers: Peers) -> None:
    reject, drop = Policy(0, 0, False, True), Policy(0, 0, False, False)
    policies = Policies(pod=drop, node=reject, other=drop)
    peers.service(node, [], frontends=[peers.vip], policies=policies)
    assert node.drops("ingress", peers.opening(peers.client, peers.vip))
    assert node.drops("ingress", peers.opening(peers.external, peers.vip))
    assert refused(node, peers.opening(peers.on_node(40000), peers.vip))


def test_a_node_port_without_endpoints_refuses_from_the_packets_destination_address(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [], node_port=30080)
    assert refused(node, peers.opening(peers.external, peers.on_node(30080)))


@pytest.mark.parametrize("size", [*range(9), 57, 79, 80, 81, 99, 100, 101, 1399, 3001])
def test_a_payload_of_any_size_is_quoted_up_to_a_limit(
    node: Node, udp_peers: Peers, size: int
) -> None:
    udp_peers.service(node, [])
    payload = bytes(number * 7 + 1 & 0xFF for number in range(size))
    packet = udp(udp_peers.external, udp_peers.vip, payload)
    assert refused(node, packet)
    assert len(unreachable(packet)) <= 48 + QUOTED


@pytest.mark.parametrize("size", [1, 2, 5, 18])
def test_the_padding_of_a_short_frame_is_not_quoted(
    node: Node, udp_peers: Peers, size: int
) -> None:
    udp_peers.service(node, [])
    packet = udp(udp_peers.external, udp_peers.vip, b"x" * size)
    assert refused(node, packet, trailer=bytes(19 - size))


def test_bytes_behind_the_packet_in_its_frame_are_not_quoted(empty: Node, peers: Peers) -> None:
    for size in (1, 4, 6):
        packet = peers.opening(peers.external, peers.vip)
        assert refused(empty, packet, trailer=b"\xa5" * size)


OPTIONS = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1, 0)), ("NOP", None), ("WScale", 7)]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 16, 20, 24, 1000])
@pytest.mark.parametrize(
    "options", [[], OPTIONS, [("NOP", None)] * 40], ids=["none", "usual", "all"]
)
def test_a_segment_with_data_and_options_is_refused_as_well(
    node: Node, tcp_peers: Peers, size: int, options: list[tuple[str, object]]
) -> None:
    tcp_peers.service(node, [])
    data = bytes(number * 7 + 1 & 0xFF for number in range(size))
    packet = tcp(tcp_peers.external, tcp_peers.vip, "SEC", data)
    packet.payload.options = options
    packet.payload.seq = 0xFFFFFFF8
    packet.payload.urgptr = 7
    assert refused(node, packet)


@pytest.mark.parametrize("hops", [1, 5, 255])
def test_the_answer_has_the_nodes_usual_hop_limit(node: Node, peers: Peers, hops: int) -> None:
    """Even if the refused packet has few hops left."""
    peers.service(node, [])
    packet = peers.opening(peers.external, peers.vip)
    if peers.family == 6:
        packet.hlim, packet.tc, packet.fl = hops, 3, 0x12345
    else:
        packet.ttl, packet.tos, packet.flags = hops, 3, "DF"
    assert refused(node, packet)


def test_a_reset_has_neither_the_label_nor_the_class_of_the_segment(
    node: Node, tcp_peers: Peers
) -> None:
    tcp_peers.service(node, [])
    packet = tcp_peers.opening(tcp_peers.external, tcp_peers.vip)
    if tcp_peers.family == 6:
        packet.tc, packet.fl = 3, 0x12345
    else:
        packet.tos = 3
    assert refused(node, packet)


@pytest.mark.parametrize("flags", ["A", "PA", "FA", "R", "RA", "SA", ""])
def test_only_a_segment_that_opens_a_connection_is_refused(
    node: Node, tcp_peers: Peers, flags: str
) -> None:
    tcp_peers.service(node, [])
    packet = tcp(tcp_peers.external, tcp_peers.vip, flags)
    assert same(node.forward(packet), packet)


@pytest.mark.parametrize("count", [1, 4, 12, 40])
def test_a_packet_with_ip_options_is_quoted_with_them(
    node: Node, ipv4_peers: Peers, count: int
) -> None:
    ipv4_peers.service(node, [])
    packet = ipv4_peers.opening(ipv4_peers.external, ipv4_peers.vip)
    packet.options = [IPOption_NOP()] * count
    assert refused(node, packet)


@pytest.mark.parametrize("padding", [0, 8, 80, 120, 240])
def test_a_packet_with_extension_headers_is_quoted_with_them(
    node: Node, ipv6_peers: Peers, padding: int
) -> None:
    """As many of them as there is room for, even if the ports are behind them."""
    ipv6_peers.service(node, [])
    options = IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(padding))])
    opening = ipv6_peers.opening(ipv6_peers.external, ipv6_peers.vip)
    assert refused(node, opening, IPv6ExtHdrHopByHop(), options)


def fragment(packet: Packet, offset: int, more: int) -> Packet:
    """Make a fragment from a packet's first bytes, with any offset."""
    if packet.version == 4:
        return IP(
            src=packet.src, dst=packet.dst, proto=packet.proto, id=7, frag=offset, flags=more
        ) / bytes(packet.payload)
    header = IPv6ExtHdrFragment(offset=offset, m=more, id=7, nh=packet.nh)
    return ip(packet.src, packet.dst) / header / bytes(packet.payload)


def test_the_first_fragment_is_refused_and_the_others_pass_unchanged(
    empty: Node, peers: Peers
) -> None:
    packet = peers.opening(peers.external, peers.vip)
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


def test_packets_from_an_address_of_no_single_host_get_no_answer(empty: Node, peers: Peers) -> None:
    for source in NOBODYS[peers.family]:
        packet = peers.opening(peers.with_port(source, 40000), peers.vip)
        verdict, _ = empty.run("ingress", packet)
        assert (source, verdict) == (source, SHOT)
    for source in ALMOST_NOBODYS[peers.family]:
        assert refused(empty, peers.opening(peers.with_port(source, 40000), peers.vip))


def test_an_error_about_a_refused_packet_is_not_refused(empty: Node, peers: Peers) -> None:
    """RFC 1122, 3.2.2: errors are not answered with errors."""
    packet = error(
        address_of(peers.external), address_of(peers.vip), peers.opening(peers.vip, peers.external)
    )
    assert same(empty.forward(packet), packet)


def test_egress_never_refuses(empty: Node, peers: Peers) -> None:
    """Ingress has decided before. (Of a packet of the node itself: test_node_openings.py.)"""
    for byte in (0, 1):
        empty.fill_filter(byte)
        packet = peers.opening(peers.client, peers.vip)
        verdict, after = empty.run("egress", packet, arrived=empty.interface)
        assert verdict == UNSPEC
        assert same(after, packet)


def test_the_refusal_itself_passes_the_hooks_unchanged(empty: Node, peers: Peers) -> None:
    verdict, frame = empty.run_frame(
        "ingress", bytes(LINK / peers.opening(peers.external, peers.vip))
    )
    assert verdict == REDIRECT
    assert empty.run_frame("egress", frame) == (UNSPEC, frame)


ANOTHER = "02:00:00:00:00:77"
"""The hardware address of another machine."""

OWN = "00:00:00:00:00:00"
"""That of loopback, where all packets of these tests arrive."""


def test_frames_for_another_machine_are_neither_refused_nor_dropped_nor_counted(
    empty: Node, peers: Peers
) -> None:
    """They come by an interface in promiscuous mode, and by the port of a bridge."""
    packet = peers.opening(peers.external, peers.vip)
    frame = bytes(Ether(src=LINK.src, dst=ANOTHER) / packet)
    assert empty.run_frame("ingress", frame) == (UNSPEC, frame)
    assert empty.counter("rejected__no_endpoints") == 0
    drop = Policy(0, 0, False, False)
    peers.service(empty, [], frontends=[peers.vip], policies=Policies(drop, drop, drop))
    assert empty.run_frame("ingress", frame) == (UNSPEC, frame)
    assert empty.counter("dropped__no_endpoints") == 0


def test_frames_for_another_machine_open_no_connection(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    frame = bytes(Ether(src=LINK.src, dst=ANOTHER) / peers.opening(peers.client, peers.vip))
    assert node.run_frame("ingress", frame) == (UNSPEC, frame)
    assert node.states() == (0, 0)


@pytest.mark.parametrize("mac", [OWN, LINK.dst], ids=["its own", "another interface's"])
def test_a_frame_for_this_node_is_refused_from_the_address_that_it_was_for(
    empty: Node, peers: Peers, mac: str
) -> None:
    """A bridge has a hardware address of its own, and frames for it come by its ports."""
    packet = peers.opening(peers.external, peers.vip)
    verdict, frame = empty.run_frame("ingress", bytes(Ether(src=LINK.src, dst=mac) / packet))
    assert (verdict, Ether(frame).src, Ether(frame).dst) == (REDIRECT, mac, LINK.src)


@pytest.mark.parametrize("mac", ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"])
def test_a_frame_for_many_machines_gets_no_answer(empty: Node, peers: Peers, mac: str) -> None:
    """RFC 1122, 3.2.2: otherwise every machine of the network would answer."""
    packet = peers.opening(peers.external, peers.vip)
    assert empty.run_frame("ingress", bytes(Ether(src=LINK.src, dst=mac) / packet))[0] == SHOT


def answers(node: Node, packets: Iterable[Packet]) -> int:
    """Count the packets that are answered."""
    return sum(node.run("ingress", packet)[0] == REDIRECT for packet in packets)


LIMITS = {
    "icmp_interval_v4": 1000,
    "icmp_interval_v6": 1000,
    "icmp_per_second": 1000,
    "icmp_burst": 50,
}
"""The kernel's defaults."""


def test_a_client_gets_a_burst_of_errors_and_then_one_in_each_interval(
    node: Node, udp_peers: Peers
) -> None:
    """icmp_ratelimit; other clients get theirs."""
    udp_peers.service(node, [])
    node.settings(**LIMITS)
    one, other = (
        udp_peers.opening(client, udp_peers.vip)
        for client in (udp_peers.external, udp_peers.client)
    )
    assert answers(node, [one] * 20) == 6
    assert node.counter("dropped__icmp_limited") == 14
    assert answers(node, [other] * 20) == 6
    wait(lambda: answers(node, [one]) == 1, "another error is due")
    assert answers(node, [one]) == 0


def test_all_clients_together_get_no_more_errors_than_the_kernel_sends(
    node: Node, udp_peers: Peers
) -> None:
    """icmp_msgs_per_sec and icmp_msgs_burst: a flood with forged addresses makes no other flood."""
    udp_peers.service(node, [])
    node.settings(**LIMITS | {"icmp_per_second": 1})
    vip = udp_peers.vip
    clients = [
        udp_peers.with_port(
            f"198.51.{high}.{low}" if udp_peers.family == 4 else f"fd51::{high}{low}", 4
        )
        for high in range(4)
        for low in range(100, 200)
    ]
    assert 25 < answers(node, [udp_peers.opening(client, vip) for client in clients]) < 110


def test_an_interval_of_zero_limits_only_the_sum(node: Node, udp_peers: Peers) -> None:
    udp_peers.service(node, [])
    node.settings(**LIMITS | {"icmp_interval_v4": 0, "icmp_interval_v6": 0})
    packet = udp_peers.opening(udp_peers.external, udp_peers.vip)
    assert answers(node, [packet] * 20) == 20
    # Ten thousand errors of one moment: of the next errors, the first one is due in ten seconds.
    due = struct.pack("=Q", time.monotonic_ns() + 10_000_000_000)
    node.pinned.map("icmp_total").update(bytes(4), due)
    assert answers(node, [packet]) == 0


def test_resets_are_not_limited(node: Node) -> None:
    """As netfilter's REJECT with a reset."""
    node.service("web", [], frontends=["[fd96::10]:80"], family=6)
    node.settings(**LIMITS)
    assert answers(node, [tcp("[fd50::9]:40000", "[fd96::10]:80")] * 20) == 20


def test_the_first_fragment_of_a_syn_over_ipv6_is_refused_by_an_error(node: Node) -> None:
    """A reset would have to answer all of the segment."""
    peers = TCP_PEERS[1]
    peers.service(node, [])
    first, *_ = cut(tcp(peers.external, peers.vip, "S", bytes(3000)))
    verdict, out = node.run("ingress", first)
    assert verdict == REDIRECT
    assert same(out, unreachable(first))
