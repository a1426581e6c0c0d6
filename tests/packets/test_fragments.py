"""Fragments: only the first one of a datagram has ports, and the others go where it went.

What is wanted of a fragmented packet is what becomes of the whole one, cut at the same places: so
the first fragment carries the checksum that a receiver finds over the whole.
"""

from __future__ import annotations

import itertools
import time

import pytest
from scapy.layers.inet import IP, UDP, IPOption_Security, fragment
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    PadN,
)
from scapy.packet import Packet, Raw

from bpfsvc.lab.patience import wait
from tests.packets.headers import with_headers
from tests.packets.node import REDIRECT, UNSPEC, Node, ip, same, tcp, udp
from tests.packets.refusals import refused
from tests.packets.scene import SCENES, UDP_SCENES, Scene, bare

PAYLOAD = bytes(number * 7 & 0xFF for number in range(3500))

SCENES_OF_SUMS = [one for one in SCENES if one.protocol != "SCTP"]

UDP6 = UDP_SCENES[1]

SIZE = 1200
"""Bytes of every fragment but the last, a multiple of 8."""


def cut(packet: Packet, number: int = 77, size: int = SIZE) -> list[Packet]:
    """Cut a packet into fragments that share an identification."""
    if packet.version == 4:
        whole = packet.copy()
        whole.id = number
        return [
            IP(bytes(one))
            for one in fragment(whole, size)  # type: ignore[no-untyped-call]
        ]
    data = bytes(packet.payload)
    return [
        ip(packet.src, packet.dst)
        / IPv6ExtHdrFragment(
            nh=type(packet)(bytes(packet)).nh, offset=at // 8, m=at + size < len(data), id=number
        )
        / Raw(data[at : at + size])
        for at in range(0, len(data), size)
    ]


def translated(node: Node, packets: list[Packet], wanted: list[Packet]) -> bool:
    """Whether fragments pass in their order and become others."""
    return all(same(node.forward(one), two) for one, two in zip(packets, wanted, strict=True))


def untouched(node: Node, *packets: Packet) -> bool:
    """Whether packets pass as they are."""
    return all(same(node.forward(one), one) for one in packets)


@pytest.fixture(params=SCENES_OF_SUMS, ids=str)
def scene(request: pytest.FixtureRequest) -> Scene:
    """TCP and UDP. A fragment of SCTP cannot be given other ports."""
    found: Scene = request.param
    return found


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
@pytest.mark.parametrize("size", [24, 64, SIZE])
def test_in_their_order_they_become_the_fragments_of_the_translated_packet(
    node: Node, scene: Scene, masquerade: bool, size: int
) -> None:
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    payload = PAYLOAD[:100] if size < SIZE else PAYLOAD
    scene.service(node, [backend], masquerade=masquerade)
    seen = scene.connect(node, client, vip, backend)
    there = cut(scene.data(client, vip, payload), 5, size)
    assert len(there) > 2 or size == 64
    assert translated(node, there, cut(scene.data(seen, backend, payload), 5, size))
    back = cut(scene.data(backend, seen, payload), 6, size)
    assert translated(node, back, cut(scene.data(vip, client, payload), 6, size))


def test_a_fragmented_datagram_opens_a_connection(node: Node, udp_scene: Scene) -> None:
    client, vip, backend = udp_scene.stranger, udp_scene.vip, udp_scene.backend
    udp_scene.service(node, [backend], masquerade=True)
    out = [node.forward(one) for one in cut(udp(client, vip, PAYLOAD))]
    header = bytes(out[0].payload)[-SIZE:]
    seen = udp_scene.node_place(int.from_bytes(header[:2], "big"))
    wanted = cut(udp(seen, backend, PAYLOAD))
    assert [bytes(one) for one in out] == [bytes(one) for one in wanted]
    back = cut(udp(backend, seen, PAYLOAD))
    assert translated(node, back, cut(udp(vip, client, PAYLOAD)))


def test_those_after_the_first_pass_in_any_order(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    pairs = list(
        zip(
            cut(scene.data(scene.client, scene.vip, PAYLOAD)),
            cut(scene.data(scene.client, scene.backend, PAYLOAD)),
            strict=True,
        )
    )
    for later in itertools.permutations(pairs[1:]):
        order = [pairs[0], *later]
        assert translated(node, [one for one, _ in order], [two for _, two in order])


def fragments_of(node: Node) -> list[tuple[bytes, bytes]]:
    """Give what is remembered of datagrams."""
    return list(node.pinned.map("fragments").items())


def waits(node: Node, packet: Packet) -> bool:
    """Whether a packet goes round as it is: back into the interface that it came from."""
    verdict, after = node.run("ingress", packet)
    return verdict == REDIRECT and same(after, packet)


def test_one_that_overtook_the_first_goes_round_until_that_has_passed(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    first, *later = cut(scene.data(scene.client, scene.vip, PAYLOAD))
    for byte, one in itertools.product((0, 1), later):
        # On a slow machine the patience for one may be over when the next is sent.
        node.pinned.map("fragments").delete_many([key for key, _ in fragments_of(node)])
        node.fill_filter(byte)
        assert waits(node, one)
    out = cut(scene.data(scene.client, scene.backend, PAYLOAD))
    assert translated(node, [first, *later], out)


def test_nobody_goes_round_for_a_first_that_never_comes(node: Node, scene: Scene) -> None:
    _, *later = cut(scene.data(scene.client, scene.vip, PAYLOAD))
    assert waits(node, later[0])
    wait(lambda: node.run("ingress", later[0])[0] == UNSPEC, "patience ends", timeout=2)
    assert untouched(node, *later)


def test_nobody_goes_round_for_a_first_that_passed_as_it_was(node: Node, scene: Scene) -> None:
    assert untouched(node, *cut(scene.data(scene.client, scene.backend, PAYLOAD)))


def test_going_round_costs_a_share_of_the_processor_and_no_more(node: Node, scene: Scene) -> None:
    """Whoever sends later fragments only gets them passed on in the end."""
    _, later, *_ = cut(scene.data(scene.client, scene.vip, PAYLOAD))
    found = node.pinned.map("fragment_budgets")
    record = node.pinned.layout.maps["fragment_budgets"].value

    def passes() -> bool:
        window = record.pack({"window": time.monotonic_ns() >> 27, "rounds": 1 << 20})
        found.update(bytes(4), window * (found.value_size // len(window)))
        return not waits(node, later)

    # The next window, with rounds of its own, may begin in between.
    wait(passes, "a later fragment passes", timeout=2)


def test_each_hook_learns_from_the_first_that_it_sees_itself(node: Node, scene: Scene) -> None:
    """The first may have left by an interface without hooks."""
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    first, second, *_ = cut(scene.data(scene.backend, scene.client, PAYLOAD))
    node.ingress(first)
    assert same(node.egress(second), second)
    node.egress(first)
    wanted = cut(scene.data(scene.vip, scene.client, PAYLOAD))
    assert same(node.egress(second), wanted[1])


def test_datagrams_of_different_clients_may_have_one_identification(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend])
    scene.service(node, [scene.other_backend], "other", frontends=[scene.other_vip])
    ways = [
        (scene.client, scene.vip, scene.backend),
        (scene.stranger, scene.vip, scene.backend),
        (scene.client, scene.other_vip, scene.other_backend),
    ]
    there, wanted = [], []
    for client, vip, backend in ways:
        scene.connect(node, client, vip, backend)
        there.append(cut(scene.data(client, vip, PAYLOAD)))
        wanted.append(cut(scene.data(client, backend, PAYLOAD)))
    mixed = [one for row in zip(*there, strict=True) for one in row]
    assert translated(node, mixed, [one for row in zip(*wanted, strict=True) for one in row])


def test_datagrams_of_one_client_have_identifications_of_their_own(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend])
    scene.service(node, [scene.other_backend], "other", frontends=[scene.at(scene.vip, 443)])
    there, wanted = [], []
    for number, (port, backend) in enumerate([(80, scene.backend), (443, scene.other_backend)]):
        vip = scene.at(scene.vip, port)
        scene.connect(node, scene.client, vip, backend)
        there.append(cut(scene.data(scene.client, vip, PAYLOAD), number))
        wanted.append(cut(scene.data(scene.client, backend, PAYLOAD), number))
    mixed = [one for row in zip(*there, strict=True) for one in row]
    assert translated(node, mixed, [one for row in zip(*wanted, strict=True) for one in row])


def test_the_latest_first_fragment_of_an_identification_counts(node: Node, scene: Scene) -> None:
    """They come round again."""
    scene.service(node, [scene.backend])
    clients = [scene.client, scene.at(scene.client, 40001)]
    for client in clients:
        scene.connect(node, client, scene.vip, scene.backend)
    for client in [*clients, *clients]:
        there = cut(scene.data(client, scene.vip, PAYLOAD))
        assert translated(node, there, cut(scene.data(client, scene.backend, PAYLOAD)))


def test_ipv4_datagrams_of_different_protocols_may_have_one_identification(node: Node) -> None:
    """RFC 791: source, destination, protocol and identification belong together."""
    client, vip = "10.244.1.5:40000", "10.96.0.10:80"
    backends = {"TCP": "10.244.2.7:8080", "UDP": "10.244.3.8:8080"}
    for protocol, backend in backends.items():
        node.service(protocol, [backend], frontends=[vip], protocol=protocol)
    node.forward(tcp(client, vip))

    def cuts(tcp_server: str, udp_server: str) -> list[Packet]:
        one = cut(tcp(client, tcp_server, "A", PAYLOAD))
        two = cut(udp(client, udp_server, PAYLOAD))
        return [each for pair in zip(one, two, strict=True) for each in pair]

    assert translated(node, cuts(vip, vip), cuts(backends["TCP"], backends["UDP"]))


def test_ipv4_options_stand_in_every_fragment(node: Node, ipv4_scene: Scene) -> None:
    def longer(packet: Packet) -> Packet:
        packet.options = [IPOption_Security()] * 3
        return packet

    backend = ipv4_scene.at(ipv4_scene.backend, 80)
    ipv4_scene.service(node, [backend])
    ipv4_scene.connect(node, ipv4_scene.client, ipv4_scene.vip, backend)
    there = cut(longer(ipv4_scene.data(ipv4_scene.client, ipv4_scene.vip, PAYLOAD)))
    wanted = cut(longer(ipv4_scene.data(ipv4_scene.client, backend, PAYLOAD)))
    assert all(one.ihl == 14 for one in there)
    assert translated(node, there, wanted)


def test_a_udp_checksum_that_is_missing_stays_missing(node: Node, udp_scene: Scene) -> None:
    def without(server: str) -> list[Packet]:
        packet = udp(udp_scene.client, server, PAYLOAD)
        packet.payload.chksum = 0
        return cut(packet)

    udp_scene.service(node, [udp_scene.backend])
    assert translated(node, without(udp_scene.vip), without(udp_scene.backend))


def test_fragments_that_concern_no_service_pass_at_once(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    for byte in (0, 1):
        node.fill_filter(byte)
        for source, destination in (
            (scene.client, scene.at(scene.vip, 81)),
            (scene.client, scene.backend),
            (scene.backend, scene.client),
        ):
            assert untouched(node, *cut(scene.data(source, destination, PAYLOAD)))


@pytest.mark.parametrize("then", ["served", "refused", "guarded"])
def test_when_the_connection_goes_in_between_the_rest_is_nobodys(
    node: Node, scene: Scene, then: str
) -> None:
    """It must neither open another nor be refused."""
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    first, *later = cut(scene.data(scene.client, scene.vip, PAYLOAD))
    node.forward(first)
    flow = node.flow("ingress", scene.opening(scene.client, scene.vip))
    assert node.collect(flow, force=True) == 1
    if then != "served":
        frontend = scene.vip if then == "refused" else scene.at(scene.vip, 81)
        scene.service(node, [], frontends=[frontend], guarded=True)
    assert untouched(node, *later)
    assert node.states() == (0, 0)


def test_nobody_waits_for_a_first_fragment_that_was_dropped(node: Node, udp_scene: Scene) -> None:
    udp_scene.service(node, [], frontends=[udp_scene.vip], ranges=[])
    first, *later = cut(udp(udp_scene.client, udp_scene.vip, PAYLOAD))
    assert node.drops("ingress", first)
    assert untouched(node, *later)


def test_a_first_fragment_without_the_whole_tcp_header_is_nobodys(
    node: Node, tcp_scene: Scene
) -> None:
    """Whether it opens a connection cannot be seen (RFC 1858: nobody sends such)."""
    tcp_scene.service(node, [tcp_scene.backend])
    assert untouched(node, *cut(tcp_scene.opening(tcp_scene.client, tcp_scene.vip), size=8))


def test_an_sctp_packet_in_fragments_is_dropped_where_its_ports_would_change(
    node: Node, sctp_scene: Scene
) -> None:
    """Its checksum covers all fragments and no header."""
    sctp_scene.service(node, [sctp_scene.backend])
    sctp_scene.connect(node, sctp_scene.client, sctp_scene.vip, sctp_scene.backend)
    first, *later = cut(sctp_scene.data(sctp_scene.client, sctp_scene.vip, PAYLOAD))
    assert node.drops("ingress", first)
    assert node.counter("dropped__rewrite_failed") == 1
    assert untouched(node, *later)


def test_an_sctp_packet_in_fragments_passes_where_its_ports_stay(
    node: Node, sctp_scene: Scene
) -> None:
    backend = sctp_scene.at(sctp_scene.backend, 80)
    sctp_scene.service(node, [backend])
    sctp_scene.connect(node, sctp_scene.client, sctp_scene.vip, backend)
    there = cut(sctp_scene.data(sctp_scene.client, sctp_scene.vip, PAYLOAD))
    wanted = cut(sctp_scene.data(sctp_scene.client, backend, PAYLOAD))
    assert translated(node, there, wanted)


@pytest.fixture
def connected(node: Node, ipv6_scene: Scene) -> tuple[Node, Scene, str]:
    """A node with a masqueraded connection, and the client as the backend sees it."""
    ipv6_scene.service(node, [ipv6_scene.backend], masquerade=True)
    seen = ipv6_scene.connect(node, ipv6_scene.stranger, ipv6_scene.vip, ipv6_scene.backend)
    return node, ipv6_scene, seen


def test_an_atomic_fragment_is_a_whole_packet(connected: tuple[Node, Scene, str]) -> None:
    """RFC 6946."""
    node, scene, seen = connected
    header = IPv6ExtHdrFragment(id=9)
    there = with_headers(scene.data(scene.stranger, scene.vip), header)
    assert same(node.forward(there), with_headers(scene.data(seen, scene.backend), header))
    back = with_headers(scene.data(scene.backend, seen), header)
    assert same(node.forward(back), with_headers(scene.data(scene.vip, scene.stranger), header))


def test_headers_may_stand_before_that_of_a_fragment(node: Node) -> None:
    def longer(packets: list[Packet]) -> list[Packet]:
        return [with_headers(one, IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt()) for one in packets]

    UDP6.service(node, [UDP6.backend])
    there = cut(udp(UDP6.client, UDP6.vip, PAYLOAD))
    wanted = cut(udp(UDP6.client, UDP6.backend, PAYLOAD))
    assert translated(node, longer(there), longer(wanted))


def test_headers_may_be_fragmented_themselves(node: Node) -> None:
    """Those for the destination alone stand behind the header of the fragment."""

    def longer(packet: Packet) -> Packet:
        return with_headers(packet, IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(20))]))

    UDP6.service(node, [UDP6.backend])
    there = cut(longer(udp(UDP6.client, UDP6.vip, PAYLOAD)))
    wanted = cut(longer(udp(UDP6.client, UDP6.backend, PAYLOAD)))
    assert translated(node, there, wanted)


def test_a_fragmented_ping_is_nobodys_unless_a_cluster_ip_is_asked(node: Node) -> None:
    ping = ip("fd44:0:0:1::5", bare("[fd96::10]:80")) / ICMPv6EchoRequest(data=PAYLOAD)
    assert untouched(node, *cut(ping))
    node.service("web", [], frontends=["[fd96::10]:80"], guarded=True, family=6)
    first, *later = cut(ping)
    assert refused(node, first)
    assert untouched(node, *later)


def test_a_udp_datagram_as_long_as_its_first_fragment_says_is_not_believed(node: Node) -> None:
    """An IPv4 fragment with more to follow and nothing but a UDP header."""
    node.service("dns", ["10.244.2.7:53"], frontends=["10.96.0.53:53"], protocol="UDP")
    header = UDP(sport=40000, dport=53, len=60000, chksum=0x1234)
    packet = IP(src="10.244.1.5", dst="10.96.0.53", flags="MF", id=3) / header
    out = node.forward(packet)
    assert (out.dst, out.payload.dport, out.payload.len) == ("10.244.2.7", 53, 60000)
