"""Fragments: only the first one of a datagram has ports; the others follow its translation.

The wanted fragments are those of the translated whole packet, cut at the same offsets: the first
fragment carries the checksum over the whole.
"""

from __future__ import annotations

import itertools
import time

import pytest
from scapy.layers.inet import IP, UDP, IPOption_Security
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    PadN,
)
from scapy.packet import Packet

from bpfsvc.devtools.lab.patience import wait
from tests.packets.extension_headers import with_headers
from tests.packets.fragment import PAYLOAD, SIZE, cut, waits
from tests.packets.node import UNSPEC, Node
from tests.packets.packet import ip, same, tcp, udp
from tests.packets.peers import ALL_PEERS, UDP_PEERS, Peers, address_of
from tests.packets.refusals import refused

SCENES_OF_SUMS = [peer for peer in ALL_PEERS if peer.protocol != "SCTP"]

UDP6 = UDP_PEERS[1]


def translated(node: Node, packets: list[Packet], wanted: list[Packet]) -> bool:
    """True if fragments pass in this order and become the wanted ones."""
    return all(same(node.forward(packet), two) for packet, two in zip(packets, wanted, strict=True))


def untouched(node: Node, *packets: Packet) -> bool:
    """True if packets pass unchanged."""
    return all(same(node.forward(packet), packet) for packet in packets)


@pytest.fixture(params=SCENES_OF_SUMS, ids=str)
def peers(request: pytest.FixtureRequest) -> Peers:
    """TCP and UDP. The ports of an SCTP fragment cannot be changed."""
    chosen: Peers = request.param
    return chosen


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
@pytest.mark.parametrize("size", [24, 64, SIZE])
def test_fragments_in_order_become_the_fragments_of_the_translated_packet(
    node: Node, peers: Peers, masquerade: bool, size: int
) -> None:
    client, vip, backend = peers.external, peers.vip, peers.backend
    payload = PAYLOAD[:100] if size < SIZE else PAYLOAD
    peers.service(node, [backend], masquerade=masquerade)
    seen = peers.connect(node, client, vip, backend)
    there = cut(peers.data(client, vip, payload), 5, size)
    assert len(there) > 2 or size == 64
    assert translated(node, there, cut(peers.data(seen, backend, payload), 5, size))
    back = cut(peers.data(backend, seen, payload), 6, size)
    assert translated(node, back, cut(peers.data(vip, client, payload), 6, size))


def test_a_fragmented_datagram_opens_a_connection(node: Node, udp_peers: Peers) -> None:
    client, vip, backend = udp_peers.served(node, outside=True, masquerade=True)
    out = [node.forward(piece) for piece in cut(udp(client, vip, PAYLOAD))]
    header = bytes(out[0].payload)[-SIZE:]
    seen = udp_peers.on_node(int.from_bytes(header[:2], "big"))
    wanted = cut(udp(seen, backend, PAYLOAD))
    assert [bytes(packet) for packet in out] == [bytes(entry) for entry in wanted]
    back = cut(udp(backend, seen, PAYLOAD))
    assert translated(node, back, cut(udp(vip, client, PAYLOAD)))


def test_fragments_after_the_first_pass_in_any_order(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    pairs = list(
        zip(
            cut(peers.data(peers.client, peers.vip, PAYLOAD)),
            cut(peers.data(peers.client, peers.backend, PAYLOAD)),
            strict=True,
        )
    )
    for later in itertools.permutations(pairs[1:]):
        order = [pairs[0], *later]
        assert translated(node, [piece for piece, _ in order], [two for _, two in order])


def fragments_of(node: Node) -> list[tuple[bytes, bytes]]:
    """Return the entries of the map of fragments."""
    return list(node.pinned.map("fragments").items())


def test_a_fragment_that_overtook_the_first_waits_until_that_has_passed(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    first, *later = cut(peers.data(peers.client, peers.vip, PAYLOAD))
    for byte, piece in itertools.product((0, 1), later):
        # On a slow machine the time limit of one may be over when the next is sent.
        node.pinned.map("fragments").delete_many([key for key, _ in fragments_of(node)])
        node.fill_filter(byte)
        assert waits(node, piece)
    out = cut(peers.data(peers.client, peers.backend, PAYLOAD))
    assert translated(node, [first, *later], out)


def test_each_datagram_has_a_time_limit_of_its_own(node: Node, peers: Peers) -> None:
    """After that of the first datagram is over, a fragment of another one still waits."""
    whole = peers.data(peers.client, peers.vip, PAYLOAD)
    late, other = cut(whole, 77), cut(whole, 78)
    assert waits(node, late[1])
    node.set_fields("fragments", since=time.monotonic_ns() - 10**9)
    assert not waits(node, late[1])
    assert waits(node, other[1])


def test_fragments_do_not_wait_forever_for_a_missing_first_one(node: Node, peers: Peers) -> None:
    _, *later = cut(peers.data(peers.client, peers.vip, PAYLOAD))
    assert waits(node, later[0])
    wait(lambda: node.run("ingress", later[0])[0] == UNSPEC, "the time limit is over", timeout=2)
    assert untouched(node, *later)


def test_fragments_do_not_wait_when_the_first_one_passed_unchanged(
    node: Node, peers: Peers
) -> None:
    assert untouched(node, *cut(peers.data(peers.client, peers.backend, PAYLOAD)))


def test_waiting_fragments_use_only_a_share_of_the_processor(node: Node, peers: Peers) -> None:
    """If the first fragment never arrives, the later ones are passed unchanged in the end."""
    _, later, *_ = cut(peers.data(peers.client, peers.vip, PAYLOAD))
    table = node.pinned.map("fragment_budgets")
    record = node.pinned.layout.maps["fragment_budgets"].value

    def passes() -> bool:
        window = record.pack({"window": time.monotonic_ns() >> 27, "rounds": 1 << 20})
        table.update(bytes(4), window * (table.value_size // len(window)))
        return not waits(node, later)

    # The next window, which allows new rounds, may begin in between.
    wait(passes, "a later fragment passes", timeout=2)


def test_each_hook_needs_to_see_the_first_fragment_itself(node: Node, peers: Peers) -> None:
    """The first one may have left by an interface without hooks."""
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    first, second, *_ = cut(peers.data(peers.backend, peers.client, PAYLOAD))
    node.ingress(first)
    assert same(node.egress(second), second)
    node.egress(first)
    wanted = cut(peers.data(peers.vip, peers.client, PAYLOAD))
    assert same(node.egress(second), wanted[1])


def test_datagrams_of_different_clients_may_have_one_identification(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    peers.service(node, [peers.other_backend], "other", frontends=[peers.other_vip])
    ways = [
        (peers.client, peers.vip, peers.backend),
        (peers.external, peers.vip, peers.backend),
        (peers.client, peers.other_vip, peers.other_backend),
    ]
    there, wanted = [], []
    for client, vip, backend in ways:
        peers.connect(node, client, vip, backend)
        there.append(cut(peers.data(client, vip, PAYLOAD)))
        wanted.append(cut(peers.data(client, backend, PAYLOAD)))
    mixed = [piece for row in zip(*there, strict=True) for piece in row]
    assert translated(node, mixed, [piece for row in zip(*wanted, strict=True) for piece in row])


def test_datagrams_of_one_client_are_kept_apart_by_identification(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    peers.service(node, [peers.other_backend], "other", frontends=[peers.with_port(peers.vip, 443)])
    there, wanted = [], []
    for number, (port, backend) in enumerate([(80, peers.backend), (443, peers.other_backend)]):
        vip = peers.with_port(peers.vip, port)
        peers.connect(node, peers.client, vip, backend)
        there.append(cut(peers.data(peers.client, vip, PAYLOAD), number))
        wanted.append(cut(peers.data(peers.client, backend, PAYLOAD), number))
    mixed = [piece for row in zip(*there, strict=True) for piece in row]
    assert translated(node, mixed, [piece for row in zip(*wanted, strict=True) for piece in row])


def test_the_latest_first_fragment_of_an_identification_counts(node: Node, peers: Peers) -> None:
    """Identifications are used again."""
    peers.service(node, [peers.backend])
    clients = [peers.client, peers.with_port(peers.client, 40001)]
    for client in clients:
        peers.connect(node, client, peers.vip, peers.backend)
    for client in [*clients, *clients]:
        there = cut(peers.data(client, peers.vip, PAYLOAD))
        assert translated(node, there, cut(peers.data(client, peers.backend, PAYLOAD)))


def test_a_direct_datagram_may_have_the_identification_of_an_earlier_translated_one(
    node: Node, peers: Peers
) -> None:
    """Its first fragment passes unchanged, so the others must, too."""
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    back = cut(peers.data(peers.backend, peers.client, PAYLOAD))
    assert translated(node, back, cut(peers.data(peers.vip, peers.client, PAYLOAD)))
    direct = peers.with_port(peers.backend, 9090)
    assert untouched(node, *cut(peers.data(direct, peers.client, PAYLOAD)))


def test_ipv4_datagrams_of_different_protocols_may_have_one_identification(node: Node) -> None:
    """RFC 791: source, destination, protocol and identification belong together."""
    client, vip = "10.244.1.5:40000", "10.96.0.10:80"
    backends = {"TCP": "10.244.2.7:8080", "UDP": "10.244.3.8:8080"}
    for protocol, backend in backends.items():
        node.service(protocol, [backend], frontends=[vip], protocol=protocol)
    node.forward(tcp(client, vip))

    def cuts(tcp_server: str, udp_server: str) -> list[Packet]:
        of_tcp = cut(tcp(client, tcp_server, "A", PAYLOAD))
        two = cut(udp(client, udp_server, PAYLOAD))
        return [piece for pair in zip(of_tcp, two, strict=True) for piece in pair]

    assert translated(node, cuts(vip, vip), cuts(backends["TCP"], backends["UDP"]))


def test_ipv4_options_are_in_every_fragment(node: Node, ipv4_peers: Peers) -> None:
    def longer(packet: Packet) -> Packet:
        packet.options = [IPOption_Security()] * 3
        return packet

    backend = ipv4_peers.with_port(ipv4_peers.backend, 80)
    ipv4_peers.service(node, [backend])
    ipv4_peers.connect(node, ipv4_peers.client, ipv4_peers.vip, backend)
    there = cut(longer(ipv4_peers.data(ipv4_peers.client, ipv4_peers.vip, PAYLOAD)))
    wanted = cut(longer(ipv4_peers.data(ipv4_peers.client, backend, PAYLOAD)))
    assert all(piece.ihl == 14 for piece in there)
    assert translated(node, there, wanted)


def test_a_udp_checksum_that_is_missing_stays_missing(node: Node, udp_peers: Peers) -> None:
    def without(server: str) -> list[Packet]:
        packet = udp(udp_peers.client, server, PAYLOAD)
        packet.payload.chksum = 0
        return cut(packet)

    udp_peers.service(node, [udp_peers.backend])
    assert translated(node, without(udp_peers.vip), without(udp_peers.backend))


def test_fragments_of_no_service_pass_at_once(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    for byte in (0, 1):
        node.fill_filter(byte)
        for source, destination in (
            (peers.client, peers.with_port(peers.vip, 81)),
            (peers.client, peers.backend),
            (peers.backend, peers.client),
        ):
            assert untouched(node, *cut(peers.data(source, destination, PAYLOAD)))


@pytest.mark.parametrize("then", ["served", "refused", "guarded"])
def test_when_the_connection_is_removed_in_between_the_other_fragments_pass_unchanged(
    node: Node, peers: Peers, then: str
) -> None:
    """They must neither open a connection nor be refused."""
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    first, *later = cut(peers.data(peers.client, peers.vip, PAYLOAD))
    node.forward(first)
    flow = node.flow("ingress", peers.opening(peers.client, peers.vip))
    assert node.collect(flow, force=True) == 1
    if then != "served":
        frontend = peers.vip if then == "refused" else peers.with_port(peers.vip, 81)
        peers.service(node, [], frontends=[frontend], guarded=True)
    assert untouched(node, *later)
    assert node.states() == (0, 0)


def test_no_fragment_leaves_of_a_datagram_for_which_no_port_is_free(
    node: Node, udp_peers: Peers
) -> None:
    """The first one is dropped at egress; the others would show the client's own address."""
    peers = udp_peers
    other = peers.with_port("192.168.50.10" if peers.family == 4 else "fd50::10", 40000)
    node.settings(ports=1)
    peers.service(node, [peers.backend], masquerade=True)
    peers.connect(node, other, peers.vip, peers.backend)
    for fragment in cut(peers.data(peers.external, peers.vip, PAYLOAD)):
        assert node.drops("egress", node.ingress(fragment))


def test_fragments_do_not_wait_for_a_first_one_that_was_dropped(
    node: Node, udp_peers: Peers
) -> None:
    udp_peers.service(node, [], frontends=[udp_peers.vip], ranges=[])
    first, *later = cut(udp(udp_peers.client, udp_peers.vip, PAYLOAD))
    assert node.drops("ingress", first)
    assert untouched(node, *later)


def test_a_first_fragment_without_the_whole_tcp_header_passes_unchanged(
    node: Node, tcp_peers: Peers
) -> None:
    """Without flags it is not known whether it opens a connection (RFC 1858: never sent)."""
    tcp_peers.service(node, [tcp_peers.backend])
    assert untouched(node, *cut(tcp_peers.opening(tcp_peers.client, tcp_peers.vip), size=8))


def test_an_sctp_packet_in_fragments_is_dropped_where_its_ports_would_change(
    node: Node, sctp_peers: Peers
) -> None:
    """Its checksum covers all fragments and no header."""
    sctp_peers.service(node, [sctp_peers.backend])
    sctp_peers.connect(node, sctp_peers.client, sctp_peers.vip, sctp_peers.backend)
    first, *later = cut(sctp_peers.data(sctp_peers.client, sctp_peers.vip, PAYLOAD))
    assert node.drops("ingress", first)
    assert node.counter("dropped__rewrite_failed") == 1
    assert untouched(node, *later)


def test_an_sctp_packet_in_fragments_passes_where_its_ports_stay(
    node: Node, sctp_peers: Peers
) -> None:
    backend = sctp_peers.with_port(sctp_peers.backend, 80)
    sctp_peers.service(node, [backend])
    sctp_peers.connect(node, sctp_peers.client, sctp_peers.vip, backend)
    there = cut(sctp_peers.data(sctp_peers.client, sctp_peers.vip, PAYLOAD))
    wanted = cut(sctp_peers.data(sctp_peers.client, backend, PAYLOAD))
    assert translated(node, there, wanted)


@pytest.fixture
def connected(node: Node, ipv6_peers: Peers) -> tuple[Node, Peers, str]:
    """A node with a masqueraded connection, and the client as the backend sees it."""
    ipv6_peers.service(node, [ipv6_peers.backend], masquerade=True)
    seen = ipv6_peers.connect(node, ipv6_peers.external, ipv6_peers.vip, ipv6_peers.backend)
    return node, ipv6_peers, seen


def test_an_atomic_fragment_is_a_whole_packet(connected: tuple[Node, Peers, str]) -> None:
    """RFC 6946."""
    node, peers, seen = connected
    header = IPv6ExtHdrFragment(id=9)
    there = with_headers(peers.data(peers.external, peers.vip), header)
    assert same(node.forward(there), with_headers(peers.data(seen, peers.backend), header))
    back = with_headers(peers.data(peers.backend, seen), header)
    assert same(node.forward(back), with_headers(peers.data(peers.vip, peers.external), header))


def test_extension_headers_may_precede_the_fragment_header(node: Node) -> None:
    def longer(packets: list[Packet]) -> list[Packet]:
        return [
            with_headers(packet, IPv6ExtHdrHopByHop(), IPv6ExtHdrDestOpt()) for packet in packets
        ]

    UDP6.service(node, [UDP6.backend])
    there = cut(udp(UDP6.client, UDP6.vip, PAYLOAD))
    wanted = cut(udp(UDP6.client, UDP6.backend, PAYLOAD))
    assert translated(node, longer(there), longer(wanted))


def test_extension_headers_may_be_fragmented_themselves(node: Node) -> None:
    """Headers for the destination alone follow the fragment header."""

    def longer(packet: Packet) -> Packet:
        return with_headers(packet, IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(20))]))

    UDP6.service(node, [UDP6.backend])
    there = cut(longer(udp(UDP6.client, UDP6.vip, PAYLOAD)))
    wanted = cut(longer(udp(UDP6.client, UDP6.backend, PAYLOAD)))
    assert translated(node, there, wanted)


def test_a_fragmented_ping_passes_unchanged_unless_it_is_to_a_cluster_ip(node: Node) -> None:
    ping = ip("fd44:0:0:1::5", address_of("[fd96::10]:80")) / ICMPv6EchoRequest(data=PAYLOAD)
    assert untouched(node, *cut(ping))
    node.service("web", [], frontends=["[fd96::10]:80"], guarded=True, family=6)
    first, *later = cut(ping)
    assert refused(node, first)
    assert untouched(node, *later)


def test_a_first_fragment_that_claims_to_be_a_whole_udp_datagram_is_not_trusted(node: Node) -> None:
    """An IPv4 first fragment with a UDP header only, whose length covers nothing more."""
    node.service("dns", ["10.244.2.7:53"], frontends=["10.96.0.53:53"], protocol="UDP")
    header = UDP(sport=40000, dport=53, len=60000, chksum=0x1234)
    packet = IP(src="10.244.1.5", dst="10.96.0.53", flags="MF", id=3) / header
    out = node.forward(packet)
    assert (out.dst, out.payload.dport, out.payload.len) == ("10.244.2.7", 53, 60000)
