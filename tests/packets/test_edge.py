"""XDP on an uplink: what it sends is what tc would have sent, and what it leaves is untouched."""

from __future__ import annotations

import ipaddress
import time

import pytest
from scapy.packet import Packet

from bpfsvc.lab import links
from tests.packets.node import Node, tcp, udp
from tests.packets.scene import Scene, bare
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


@pytest.fixture(params=SERVED, ids=str)
def scene(request: pytest.FixtureRequest) -> Scene:
    """TCP and UDP over both families."""
    made: Scene = request.param
    return made


@pytest.fixture(params=[False, True], ids=["plain", "masqueraded"])
def masquerade(request: pytest.FixtureRequest) -> bool:
    """Whether clients are masqueraded."""
    return bool(request.param)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1399, 1440])
def test_what_is_sent_is_what_tc_would_have_sent(
    wire: Uplink, scene: Scene, masquerade: bool, size: int
) -> None:
    """All bytes of the packet, in both directions: addresses, ports, checksums and hops."""
    seen = connected(wire, scene, masquerade)
    payload = bytes(number * 7 & 0xFF for number in range(size))
    for source, to in ((scene.stranger, scene.vip), (scene.backend, seen)):
        packet = scene.data(source, to, payload)
        assert bytes(wire.sends(packet).payload) == wire.by_tc(packet)
    assert wire.node.counter("edge_forwarded") == 2


def test_frames_go_to_the_next_hop_of_the_route(wire: Uplink, scene: Scene) -> None:
    seen = connected(wire, scene)
    out = wire.sends(scene.data(scene.stranger, scene.vip))
    assert (out.src, out.dst) == (wire.near.mac, ROUTER)
    back = wire.sends(scene.data(scene.backend, seen))
    assert (back.src, back.dst) == (wire.near.mac, CLIENT)


def test_padding_and_the_bytes_behind_the_packet_stay(wire: Uplink, scene: Scene) -> None:
    connected(wire, scene)
    frame = wire.frame(scene.data(scene.stranger, scene.vip, b"")) + b"trailer"
    verdict, after = wire.run(frame)
    assert (verdict, after[-7:], len(after)) == (TX, b"trailer", len(frame))


def test_by_another_uplink_they_are_redirected(wire: Uplink, scene: Scene) -> None:
    scene.service(wire.node, [scene.other_backend], masquerade=True)
    scene.connect(wire.node, scene.stranger, scene.vip, scene.other_backend)
    packet = scene.data(scene.stranger, scene.vip)
    out = wire.sends(packet, REDIRECT)
    assert (out.src, out.dst) == (wire.far.mac, OTHER)
    assert bytes(out.payload) == wire.by_tc(packet)


def test_by_one_that_takes_nothing_from_others_they_go_by_the_stack(
    wire: Uplink, scene: Scene
) -> None:
    """Its driver would let them vanish."""
    scene.service(wire.node, [scene.other_backend], masquerade=True)
    scene.connect(wire.node, scene.stranger, scene.vip, scene.other_backend)
    wire.serve(wire.near, wire.far, takes=False)
    assert wire.passes(scene.data(scene.stranger, scene.vip))
    assert wire.node.counter("edge_passed__not_by_uplink") == 1


def test_what_leaves_as_it_came_asks_no_driver_for_that(wire: Uplink, scene: Scene) -> None:
    connected(wire, scene)
    wire.serve(wire.near, takes=False)
    wire.sends(scene.data(scene.stranger, scene.vip))


def test_where_xdp_tx_would_lose_them_they_are_redirected_too(wire: Uplink, scene: Scene) -> None:
    connected(wire, scene)
    wire.serve(wire.near, redirect=True)
    packet = scene.data(scene.stranger, scene.vip)
    assert bytes(wire.sends(packet, REDIRECT).payload) == wire.by_tc(packet)


def test_traffic_of_backends_is_counted_as_by_tc(wire: Uplink, scene: Scene) -> None:
    seen = connected(wire, scene)
    packets = (scene.data(scene.stranger, scene.vip), scene.data(scene.backend, seen))
    before = traffic(wire.node)
    for packet in packets:
        wire.node.forward(packet)
    by_tc = traffic(wire.node)
    for packet in packets:
        wire.sends(packet)
    after = traffic(wire.node)
    grown = [now - then for now, then in zip(by_tc, before, strict=True)]
    assert any(grown)
    assert [now - then for now, then in zip(after, by_tc, strict=True)] == grown


def traffic(node: Node) -> list[int]:
    """Sum what all backends have counted."""
    found = node.pinned.map("backend_counters")
    record = node.pinned.layout.maps["backend_counters"].value
    sums = [0] * len(record.names)
    for number in range(8):
        raw = found.lookup(number.to_bytes(4, "little")) or b""
        for at in range(0, len(raw), found.cpu_value_size):
            row = record.unpack(raw[at : at + record.size])
            sums = [
                so_far + int(row[name]) for so_far, name in zip(sums, record.names, strict=True)
            ]
    return sums


# -- checksums


def without_checksum(packet: Packet) -> Packet:
    packet.payload.chksum = 0
    return packet


@pytest.mark.parametrize("scene", [each for each in SERVED if each.protocol == "UDP"], ids=str)
def test_udp_without_a_checksum_stays_without(wire: Uplink, scene: Scene, masquerade: bool) -> None:
    seen = connected(wire, scene, masquerade)
    for source, to in ((scene.stranger, scene.vip), (scene.backend, seen)):
        packet = without_checksum(scene.data(source, to))
        out = wire.sends(packet).payload
        assert out.payload.chksum == 0
        assert bytes(out) == wire.by_tc(packet)


@pytest.mark.parametrize("scene", [each for each in SERVED if each.protocol == "UDP"], ids=str)
def test_a_udp_checksum_that_becomes_zero_is_sent_as_all_ones(wire: Uplink, scene: Scene) -> None:
    connected(wire, scene, masquerade=False)
    without = udp(scene.stranger, scene.backend, b"\0\0")
    payload = type(without)(bytes(without)).payload.chksum.to_bytes(2, "big")
    out = wire.sends(udp(scene.stranger, scene.vip, payload)).payload
    assert out.payload.chksum == 0xFFFF
    assert bytes(out) == wire.by_tc(udp(scene.stranger, scene.vip, payload))


def test_a_wrong_checksum_stays_wrong(wire: Uplink, scene: Scene) -> None:
    connected(wire, scene)
    packet = scene.data(scene.stranger, scene.vip)
    packet.payload.chksum = type(packet)(bytes(packet)).payload.chksum ^ 0x0101
    assert bytes(wire.sends(packet).payload) == wire.by_tc(packet)


@pytest.mark.parametrize("flags", ["S", "SA", "FA", "R", "RA"])
@pytest.mark.parametrize("scene", [each for each in SERVED if each.protocol == "TCP"], ids=str)
def test_what_opens_or_ends_a_connection_goes_by_the_stack(
    wire: Uplink, scene: Scene, flags: str
) -> None:
    seen = connected(wire, scene)
    assert wire.passes(tcp(scene.stranger, scene.vip, flags))
    assert wire.passes(tcp(scene.backend, seen, flags))


@pytest.mark.parametrize("ends", ["client", "backend"])
@pytest.mark.parametrize("flags", ["FA", "R"])
@pytest.mark.parametrize("scene", [each for each in SERVED if each.protocol == "TCP"], ids=str)
def test_after_the_first_sign_of_its_end_all_of_a_connection_does(
    wire: Uplink, scene: Scene, flags: str, ends: str
) -> None:
    """Netfilter, which has not seen the middle, shall see the end as a whole."""
    seen = connected(wire, scene)
    last = (scene.stranger, scene.vip) if ends == "client" else (scene.backend, seen)
    wire.node.forward(tcp(*last, flags))
    assert wire.passes(scene.data(scene.stranger, scene.vip))
    assert wire.passes(scene.data(scene.backend, seen))


@pytest.mark.parametrize("scene", [each for each in SERVED if each.protocol == "TCP"], ids=str)
def test_tcp_that_is_not_established_goes_by_the_stack(wire: Uplink, scene: Scene) -> None:
    scene.service(wire.node, [scene.backend], masquerade=True)
    seen = scene.begin(wire.node, scene.stranger, scene.vip, scene.backend)
    assert wire.passes(tcp(scene.stranger, scene.vip, "A"))
    assert wire.passes(tcp(scene.backend, seen, "PA"))


@pytest.mark.parametrize("scene", [each for each in SERVED if each.protocol == "UDP"], ids=str)
def test_datagrams_that_nobody_answers_are_sent_once_the_first_has_left(
    wire: Uplink, scene: Scene
) -> None:
    """That it left, and was not dropped on its way, shows in the port that it was given."""
    scene.service(wire.node, [scene.backend], masquerade=True)
    packet = scene.opening(scene.stranger, scene.vip)
    assert wire.passes(packet)
    routed = wire.node.ingress(packet)
    assert wire.passes(packet)
    out = wire.node.egress(routed)
    sent = wire.sends(packet).payload
    assert (sent.src, sent.sport) == (out.src, out.sport)
    assert bytes(sent) == wire.by_tc(packet)
    seen = scene.at(out.src, out.payload.sport)
    assert wire.passes(scene.answer(scene.backend, seen)), "tc notes the first answer"


@pytest.mark.parametrize("scene", [each for each in SERVED if each.protocol == "UDP"], ids=str)
def test_without_masquerade_nothing_shows_that_an_unanswered_datagram_has_left(
    wire: Uplink, scene: Scene
) -> None:
    scene.service(wire.node, [scene.backend])
    wire.node.forward(scene.opening(scene.stranger, scene.vip))
    assert wire.passes(scene.data(scene.stranger, scene.vip))


def test_what_would_leave_half_translated_goes_by_the_stack(wire: Uplink, scene: Scene) -> None:
    """Pairs live on their own: one may be collected, and the other must not be used alone."""
    seen = connected(wire, scene)
    make = tcp if scene.protocol == "TCP" else udp
    wire.node.collect(wire.node.flow("egress", make(scene.stranger, scene.backend)), force=True)
    assert wire.passes(scene.data(scene.stranger, scene.vip))
    wire.node.reset()
    seen = connected(wire, scene)
    wire.node.collect(wire.node.flow("egress", make(scene.backend, scene.stranger)), force=True)
    assert wire.passes(scene.data(scene.backend, seen))


def test_a_direct_packet_like_a_masqueraded_one_is_left(wire: Uplink, scene: Scene) -> None:
    """Client to backend, as the kernel routes a connection through the frontend."""
    connected(wire, scene)
    assert wire.passes(scene.data(scene.stranger, scene.backend))


def test_while_connections_are_carried_over_nothing_is_sent(wire: Uplink, scene: Scene) -> None:
    connected(wire, scene)
    wire.node.settings(settling=1)
    assert wire.passes(scene.data(scene.stranger, scene.vip))


def test_by_an_interface_that_is_not_served_nothing_comes_or_goes(
    wire: Uplink, scene: Scene
) -> None:
    scene.service(wire.node, [scene.other_backend], masquerade=True)
    scene.connect(wire.node, scene.stranger, scene.vip, scene.other_backend)
    packet = scene.data(scene.stranger, scene.vip)
    wire.serve(wire.far)
    assert wire.passes(packet)
    assert wire.node.counter("edge_passed__not_by_uplink") == 0
    wire.serve(wire.near)
    for _ in range(5):
        assert wire.passes(packet)
    assert wire.node.counter("edge_passed__not_by_uplink") == 1, "not asked for every packet"


def test_a_backend_on_this_node_is_left_to_tc(wire: Uplink, scene: Scene) -> None:
    local = scene.at("192.168.50.11" if scene.family == 4 else "fd50::11", 8080)
    scene.service(wire.node, [local], masquerade=True)
    scene.connect(wire.node, scene.stranger, scene.vip, local)
    assert wire.passes(scene.data(scene.stranger, scene.vip))


def test_without_a_neighbour_the_stack_looks_for_it_and_then_xdp_sends(
    wire: Uplink, scene: Scene
) -> None:
    connected(wire, scene)
    packet = scene.data(scene.stranger, scene.vip)
    hop = ipaddress.ip_address("192.168.50.12" if scene.family == 4 else "fd50::12")
    wire.near.namespace.netlink.neigh("del", ifindex=wire.near.index, dst=str(hop))
    try:
        assert wire.passes(packet)
        assert wire.node.counter("edge_passed__not_now") == 1
    finally:
        links.add_neighbour(wire.near, hop, ROUTER)
    wire.sends(packet)


def test_one_packet_of_a_turn_goes_by_the_stack_each_way(
    wire: Uplink, scene: Scene, masquerade: bool
) -> None:
    """So that neighbours are found out to be gone, and netfilter learns that the flow lives."""
    seen = connected(wire, scene, masquerade)
    for packet in (scene.data(scene.stranger, scene.vip), scene.data(scene.backend, seen)):
        wire.node.age(18)
        assert wire.passes(packet)
        for _ in range(3):
            wire.sends(packet)
    assert wire.node.counter("edge_passed__turn") == 2


def test_what_is_sent_keeps_all_entries_of_its_connection_alive(wire: Uplink, scene: Scene) -> None:
    seen = connected(wire, scene)
    packets = (scene.data(scene.stranger, scene.vip), scene.data(scene.backend, seen))
    for packet in packets:
        wire.sends(packet)
    # Within the turn of the clock if it lasts so long yet, else by one packet for the stack.
    wire.node.age(2)
    for packet in packets:
        wire.run(wire.frame(packet))
    assert recent(wire.node) == [True] * 4


def recent(node: Node) -> list[bool]:
    """Tell of every entry whether it was seen within a second."""
    record = node.pinned.layout.maps["connections"].value
    now = time.monotonic_ns()
    return [
        now - int(record.unpack(raw)["seen"]) < 1_000_000_000
        for _, raw in node.pinned.map("connections").items()
    ]


def test_the_address_a_client_asks_for_may_be_the_node(wire: Uplink, scene: Scene) -> None:
    """A NodePort."""
    scene.service(wire.node, [scene.backend], masquerade=True, node_port=30080)
    place = scene.node_place(30080)
    seen = scene.connect(wire.node, scene.stranger, place, scene.backend)
    for source, to in ((scene.stranger, place), (scene.backend, seen)):
        packet = scene.data(source, to)
        assert bytes(wire.sends(packet).payload) == wire.by_tc(packet)
    assert bare(seen) == scene.us
