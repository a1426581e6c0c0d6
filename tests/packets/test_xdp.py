"""XDP on an uplink: it sends what tc would have sent, and passes all else unchanged."""

from __future__ import annotations

import ipaddress
import socket
import time

import pytest
from scapy.packet import Packet

from bpfsvc.devtools.lab import links
from tests.packets.node import Node
from tests.packets.packet import tcp, udp
from tests.packets.peers import TCP_PEERS, UDP_PEERS, Peers, address_of
from tests.packets.traffic import counted
from tests.packets.uplink import (
    CLIENT,
    OTHER,
    REDIRECT,
    ROUTER,
    SERVED,
    TX,
    Uplink,
    connected,
)

TURN_SHIFT = 34
"""Of the clock's nanoseconds: an interval is 17 s (bpf/path/xdp/forward.h)."""


@pytest.fixture(params=SERVED, ids=str)
def peers(request: pytest.FixtureRequest) -> Peers:
    """TCP and UDP over both families."""
    made: Peers = request.param
    return made


@pytest.fixture(params=[False, True], ids=["plain", "masqueraded"])
def masquerade(request: pytest.FixtureRequest) -> bool:
    """True if clients are masqueraded."""
    return bool(request.param)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1399, 1440])
def test_xdp_sends_what_tc_would_have_sent(
    xdp_uplink: Uplink, peers: Peers, masquerade: bool, size: int
) -> None:
    """All bytes of the packet, in both directions: addresses, ports, checksums and hops."""
    seen = connected(xdp_uplink, peers, masquerade)
    payload = bytes(number * 7 & 0xFF for number in range(size))
    for source, to in ((peers.external, peers.vip), (peers.backend, seen)):
        packet = peers.data(source, to, payload)
        assert bytes(xdp_uplink.sends(packet).payload) == xdp_uplink.by_tc(packet)
    assert xdp_uplink.node.counter("edge_forwarded") == 2


def test_frames_go_to_the_next_hop_of_the_route(xdp_uplink: Uplink, peers: Peers) -> None:
    seen = connected(xdp_uplink, peers)
    out = xdp_uplink.sends(peers.data(peers.external, peers.vip))
    assert (out.src, out.dst) == (xdp_uplink.near.mac, ROUTER)
    back = xdp_uplink.sends(peers.data(peers.backend, seen))
    assert (back.src, back.dst) == (xdp_uplink.near.mac, CLIENT)


def test_padding_and_the_bytes_behind_the_packet_stay(xdp_uplink: Uplink, peers: Peers) -> None:
    connected(xdp_uplink, peers)
    frame = xdp_uplink.frame(peers.data(peers.external, peers.vip, b"")) + b"trailer"
    verdict, after = xdp_uplink.run(frame)
    assert (verdict, after[-7:], len(after)) == (TX, b"trailer", len(frame))


def test_packets_for_another_uplink_are_redirected(xdp_uplink: Uplink, peers: Peers) -> None:
    peers.service(xdp_uplink.node, [peers.other_backend], masquerade=True)
    peers.connect(xdp_uplink.node, peers.external, peers.vip, peers.other_backend)
    packet = peers.data(peers.external, peers.vip)
    out = xdp_uplink.sends(packet, REDIRECT)
    assert (out.src, out.dst) == (xdp_uplink.far.mac, OTHER)
    assert bytes(out.payload) == xdp_uplink.by_tc(packet)


def test_packets_for_an_uplink_that_takes_no_redirects_go_by_the_stack(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """Its driver would drop them silently."""
    peers.service(xdp_uplink.node, [peers.other_backend], masquerade=True)
    peers.connect(xdp_uplink.node, peers.external, peers.vip, peers.other_backend)
    xdp_uplink.serve(xdp_uplink.near, xdp_uplink.far, takes=False)
    assert xdp_uplink.passes(peers.data(peers.external, peers.vip))
    assert xdp_uplink.node.counter("edge_passed__not_by_uplink") == 1


def test_a_packet_that_leaves_by_its_own_uplink_needs_no_redirect(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    connected(xdp_uplink, peers)
    xdp_uplink.serve(xdp_uplink.near, takes=False)
    xdp_uplink.sends(peers.data(peers.external, peers.vip))


def test_where_xdp_tx_would_lose_packets_they_are_redirected_too(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    connected(xdp_uplink, peers)
    xdp_uplink.serve(xdp_uplink.near, redirect=True)
    packet = peers.data(peers.external, peers.vip)
    assert bytes(xdp_uplink.sends(packet, REDIRECT).payload) == xdp_uplink.by_tc(packet)


def test_traffic_of_backends_is_counted_as_by_tc(xdp_uplink: Uplink, peers: Peers) -> None:
    seen = connected(xdp_uplink, peers)
    packets = (peers.data(peers.external, peers.vip), peers.data(peers.backend, seen))
    before = traffic(xdp_uplink.node)
    for packet in packets:
        xdp_uplink.node.forward(packet)
    by_tc = traffic(xdp_uplink.node)
    for packet in packets:
        xdp_uplink.sends(packet)
    after = traffic(xdp_uplink.node)
    grown = [now - then for now, then in zip(by_tc, before, strict=True)]
    assert any(grown)
    assert [now - then for now, then in zip(after, by_tc, strict=True)] == grown


def traffic(node: Node) -> list[int]:
    """Sum what all backends have counted."""
    numbers = (counted(node, counters_id).values() for counters_id in range(8))
    return [sum(column) for column in zip(*numbers, strict=True)]


# -- checksums


def without_checksum(packet: Packet) -> Packet:
    packet.payload.chksum = 0
    return packet


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_udp_without_a_checksum_stays_without_one(
    xdp_uplink: Uplink, peers: Peers, masquerade: bool
) -> None:
    seen = connected(xdp_uplink, peers, masquerade)
    for source, to in ((peers.external, peers.vip), (peers.backend, seen)):
        packet = without_checksum(peers.data(source, to))
        out = xdp_uplink.sends(packet).payload
        assert out.payload.chksum == 0
        assert bytes(out) == xdp_uplink.by_tc(packet)


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_a_udp_checksum_that_becomes_zero_is_sent_as_all_ones(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    connected(xdp_uplink, peers, masquerade=False)
    without = udp(peers.external, peers.backend, b"\0\0")
    payload = type(without)(bytes(without)).payload.chksum.to_bytes(2, "big")
    out = xdp_uplink.sends(udp(peers.external, peers.vip, payload)).payload
    assert out.payload.chksum == 0xFFFF
    assert bytes(out) == xdp_uplink.by_tc(udp(peers.external, peers.vip, payload))


def test_a_wrong_checksum_stays_wrong(xdp_uplink: Uplink, peers: Peers) -> None:
    connected(xdp_uplink, peers)
    packet = peers.data(peers.external, peers.vip)
    packet.payload.chksum = type(packet)(bytes(packet)).payload.chksum ^ 0x0101
    assert bytes(xdp_uplink.sends(packet).payload) == xdp_uplink.by_tc(packet)


@pytest.mark.parametrize("flags", ["S", "SA", "FA", "R", "RA"])
@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_a_packet_that_opens_or_ends_a_connection_goes_by_the_stack(
    xdp_uplink: Uplink, peers: Peers, flags: str
) -> None:
    seen = connected(xdp_uplink, peers)
    assert xdp_uplink.passes(tcp(peers.external, peers.vip, flags))
    assert xdp_uplink.passes(tcp(peers.backend, seen, flags))


@pytest.mark.parametrize("ends", ["client", "backend"])
@pytest.mark.parametrize("flags", ["FA", "R"])
@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_after_the_first_fin_or_rst_the_whole_connection_goes_by_the_stack(
    xdp_uplink: Uplink, peers: Peers, flags: str, ends: str
) -> None:
    """Netfilter, which has not seen the middle, must see the complete end."""
    seen = connected(xdp_uplink, peers)
    last = (peers.external, peers.vip) if ends == "client" else (peers.backend, seen)
    xdp_uplink.node.forward(tcp(*last, flags))
    assert xdp_uplink.passes(peers.data(peers.external, peers.vip))
    assert xdp_uplink.passes(peers.data(peers.backend, seen))


@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_tcp_that_is_not_established_goes_by_the_stack(xdp_uplink: Uplink, peers: Peers) -> None:
    peers.service(xdp_uplink.node, [peers.backend], masquerade=True)
    seen = peers.begin(xdp_uplink.node, peers.external, peers.vip, peers.backend)
    assert xdp_uplink.passes(tcp(peers.external, peers.vip, "A"))
    assert xdp_uplink.passes(tcp(peers.backend, seen, "PA"))


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_unanswered_datagrams_are_sent_by_xdp_once_the_first_has_left(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """The masquerade port shows that the first one left and was not dropped in the stack."""
    peers.service(xdp_uplink.node, [peers.backend], masquerade=True)
    packet = peers.opening(peers.external, peers.vip)
    assert xdp_uplink.passes(packet)
    routed = xdp_uplink.node.ingress(packet)
    assert xdp_uplink.passes(packet)
    out = xdp_uplink.node.egress(routed)
    sent = xdp_uplink.sends(packet).payload
    assert (sent.src, sent.sport) == (out.src, out.sport)
    assert bytes(sent) == xdp_uplink.by_tc(packet)
    seen = peers.with_port(out.src, out.payload.sport)
    assert xdp_uplink.passes(peers.answer(peers.backend, seen)), "tc notes the first answer"


@pytest.mark.parametrize("peers", UDP_PEERS, ids=str)
def test_without_masquerade_nothing_shows_that_an_unanswered_datagram_has_left(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    peers.service(xdp_uplink.node, [peers.backend])
    xdp_uplink.node.forward(peers.opening(peers.external, peers.vip))
    assert xdp_uplink.passes(peers.data(peers.external, peers.vip))


def test_a_packet_that_xdp_can_only_half_translate_goes_by_the_stack(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """Pairs have separate lifetimes: one may be removed, and the other must not be used alone."""
    seen = connected(xdp_uplink, peers)
    make = tcp if peers.protocol == "TCP" else udp
    xdp_uplink.node.collect(
        xdp_uplink.node.flow("egress", make(peers.external, peers.backend)), force=True
    )
    assert xdp_uplink.passes(peers.data(peers.external, peers.vip))
    xdp_uplink.node.reset()
    seen = connected(xdp_uplink, peers)
    xdp_uplink.node.collect(
        xdp_uplink.node.flow("egress", make(peers.backend, peers.external)), force=True
    )
    assert xdp_uplink.passes(peers.data(peers.backend, seen))


def test_a_direct_packet_like_a_masqueraded_one_is_passed(xdp_uplink: Uplink, peers: Peers) -> None:
    """Client to backend, as the kernel routes a connection through the frontend."""
    connected(xdp_uplink, peers)
    assert xdp_uplink.passes(peers.data(peers.external, peers.backend))


def test_while_connections_are_copied_xdp_sends_nothing(xdp_uplink: Uplink, peers: Peers) -> None:
    connected(xdp_uplink, peers)
    xdp_uplink.node.settings(takeover=1)
    assert xdp_uplink.passes(peers.data(peers.external, peers.vip))


def test_xdp_neither_takes_from_nor_sends_by_an_interface_that_is_not_served(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    peers.service(xdp_uplink.node, [peers.other_backend], masquerade=True)
    peers.connect(xdp_uplink.node, peers.external, peers.vip, peers.other_backend)
    packet = peers.data(peers.external, peers.vip)
    xdp_uplink.serve(xdp_uplink.far)
    assert xdp_uplink.passes(packet)
    assert xdp_uplink.node.counter("edge_passed__not_by_uplink") == 0
    xdp_uplink.serve(xdp_uplink.near)
    for _ in range(5):
        assert xdp_uplink.passes(packet)
    assert xdp_uplink.node.counter("edge_passed__not_by_uplink") == 1, (
        "the check is not made for every packet"
    )


def test_packets_to_a_backend_on_this_node_are_passed_to_tc(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    local = peers.with_port("192.168.50.11" if peers.family == 4 else "fd50::11", 8080)
    peers.service(xdp_uplink.node, [local], masquerade=True)
    peers.connect(xdp_uplink.node, peers.external, peers.vip, local)
    assert xdp_uplink.passes(peers.data(peers.external, peers.vip))


def test_without_a_neighbour_the_stack_resolves_it_and_then_xdp_sends(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    connected(xdp_uplink, peers)
    packet = peers.data(peers.external, peers.vip)
    hop = ipaddress.ip_address("192.168.50.12" if peers.family == 4 else "fd50::12")
    xdp_uplink.near.namespace.netlink.neigh("del", ifindex=xdp_uplink.near.index, dst=str(hop))
    try:
        assert xdp_uplink.passes(packet)
        assert xdp_uplink.node.counter("edge_passed__not_now") == 1
    finally:
        links.add_neighbour(xdp_uplink.near, hop, ROUTER)
    xdp_uplink.sends(packet)


def test_one_packet_per_interval_goes_by_the_stack_each_way(
    xdp_uplink: Uplink, peers: Peers, masquerade: bool
) -> None:
    """So the kernel notices dead neighbours, and netfilter sees that the flow is alive."""
    seen = connected(xdp_uplink, peers, masquerade)
    for packet in (peers.data(peers.external, peers.vip), peers.data(peers.backend, seen)):
        xdp_uplink.node.age(18)
        assert xdp_uplink.passes(packet)
        for _ in range(3):
            xdp_uplink.sends(packet)
    assert xdp_uplink.node.counter("edge_passed__turn") == 2


def test_packets_that_xdp_sends_keep_all_entries_of_their_connection_alive(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    seen = connected(xdp_uplink, peers)
    packets = (peers.data(peers.external, peers.vip), peers.data(peers.backend, seen))
    for packet in packets:
        xdp_uplink.sends(packet)
    # Within the interval if enough of it is left, else by one packet through the stack.
    xdp_uplink.node.age(2)
    for packet in packets:
        xdp_uplink.run(xdp_uplink.frame(packet))
    assert recent(xdp_uplink.node) == [True] * 4


def test_a_packet_of_the_interval_that_has_had_one_by_the_stack_is_sent(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """Though the connection was silent for longer than the time of an entry is exact."""
    connected(xdp_uplink, peers)
    packet = peers.data(peers.external, peers.vip)
    xdp_uplink.sends(packet)
    while time.monotonic_ns() >> TURN_SHIFT != time.monotonic_ns() - 3_000_000_000 >> TURN_SHIFT:
        time.sleep(0.1)
    xdp_uplink.node.age(2)
    xdp_uplink.sends(packet)


@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_what_a_packet_acknowledges_is_noted_by_xdp(xdp_uplink: Uplink, peers: Peers) -> None:
    """By it a reset is judged later."""
    connected(xdp_uplink, peers)
    packet = peers.data(peers.external, peers.vip)
    packet.payload.flags, packet.payload.ack, packet.payload.window = "A", 77, 1234
    xdp_uplink.sends(packet)
    record = xdp_uplink.node.pinned.layout.maps["connections"].value
    entry = xdp_uplink.node.pinned.map("connections").lookup(
        xdp_uplink.node.flow("ingress", packet)
    )
    assert entry is not None
    noted = record.unpack(entry)
    assert (noted["acknowledged"], noted["window"]) == (socket.htonl(77), socket.htons(1234))


def recent(node: Node) -> list[bool]:
    """Return one value per connection entry: True if it was seen within the last second."""
    record = node.pinned.layout.maps["connections"].value
    now = time.monotonic_ns()
    return [
        now - int(record.unpack(raw)["seen"]) < 1_000_000_000
        for _, raw in node.pinned.map("connections").items()
    ]


def test_a_frontend_may_be_an_address_of_the_node(xdp_uplink: Uplink, peers: Peers) -> None:
    """A NodePort."""
    peers.service(xdp_uplink.node, [peers.backend], masquerade=True, node_port=30080)
    frontend = peers.on_node(30080)
    seen = peers.connect(xdp_uplink.node, peers.external, frontend, peers.backend)
    for source, to in ((peers.external, frontend), (peers.backend, seen)):
        packet = peers.data(source, to)
        assert bytes(xdp_uplink.sends(packet).payload) == xdp_uplink.by_tc(packet)
    assert address_of(seen) == peers.node_address


def test_a_packet_within_a_second_of_another_one_is_not_noted(
    xdp_uplink: Uplink, peers: Peers
) -> None:
    """The time of an entry is exact to a second, and CPUs share it."""
    connected(xdp_uplink, peers)
    xdp_uplink.node.age(0.1)
    before = seen_at(xdp_uplink.node)
    xdp_uplink.sends(peers.data(peers.external, peers.vip))
    assert seen_at(xdp_uplink.node) == before


def seen_at(node: Node) -> list[int]:
    """Return when each connection entry was seen last."""
    record = node.pinned.layout.maps["connections"].value
    return sorted(
        int(record.unpack(raw)["seen"]) for _, raw in node.pinned.map("connections").items()
    )


def test_a_packet_takes_the_route_of_its_traffic_class(xdp_uplink: Uplink) -> None:
    """Of IPv4, where a route may be for one class only."""
    peers = TCP_PEERS[0]
    connected(xdp_uplink, peers)
    packet = peers.data(peers.external, peers.vip)
    network = ipaddress.ip_interface(f"{address_of(peers.backend)}/24").network
    far = xdp_uplink.far
    far.namespace.netlink.route(
        "replace",
        dst=str(network),
        oif=far.index,
        gateway="192.168.51.13",
        flags=["onlink"],
        tos=0x10,
        family=socket.AF_INET,
    )
    xdp_uplink.sends(packet)
    packet.tos = 0x10
    assert xdp_uplink.sends(packet, REDIRECT).dst == OTHER
