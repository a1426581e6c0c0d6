"""Packets of Services that other parts of the node drop: by what they are known, and told of."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from scapy.layers.inet import ICMP
from scapy.layers.inet6 import ICMPv6EchoRequest
from scapy.packet import Packet

from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.services.entries import Policies, Policy
from tests.packets.dropped import REASON, UNREADABLE, DroppedPackets, dropped_packets
from tests.packets.node import Node
from tests.packets.packet import address_port, ip
from tests.packets.peers import TCP_PEERS, Peers

COOKIE = 0x12345
UNNAMED = 65537
"""A reason of one of the kernel's subsystems."""

NODE_PORT = 30080

FILTERS = pytest.mark.parametrize(
    "every_port", [False, True], ids=["the filter knows", "the filter has every port"]
)

MASQUERADED = Policy(0, 1, masquerade=True, reject=False)


@pytest.fixture
def drops(node: Node) -> Iterator[DroppedPackets]:
    with dropped_packets(node) as made:
        yield made


def ends(event: dict[str, Any]) -> tuple[str, str, str]:
    return event["client"], event["frontend"], event["backend"]


def named(node: Node, peers: Peers, *, frontend: str = "", cookie: int = COOKIE) -> None:
    """Note that a socket asked for a frontend, and is connected to the backend."""
    layout = node.pinned.layout
    names = node.pinned.map("peer_names")
    (asked, port), (to, to_port) = address_port(frontend or peers.vip), address_port(peers.backend)
    entry: dict[str, int | bytes] = {
        **{"socket": cookie, "frontend": asked, "frontend_port": port},
        **{"backend": to, "backend_port": to_port},
    }
    key = struct.pack("=I", COOKIE & names.max_entries - 1)
    names.update(key, layout.maps["peer_names"].value.pack(entry))


@pytest.fixture(autouse=True)
def unnamed(node: Node) -> Iterator[None]:
    """Forget the names of sockets afterwards."""
    yield
    names = node.pinned.map("peer_names")
    names.update(struct.pack("=I", COOKIE & names.max_entries - 1), bytes(names.value_size))


@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_a_packet_of_a_connection_is_known_wherever_it_is_dropped(
    node: Node, drops: DroppedPackets, peers: Peers, masquerade: bool
) -> None:
    drops.ask("ended")
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=masquerade)
    drops.ask()
    assert (seen != client) == masquerade
    for source, to in ((client, vip), (client, backend), (seen, backend)):
        for packet in (peers.data(source, to), peers.data(to, source)):
            (event,) = drops.told(packet)
            assert ends(event) == (client, vip, backend), packet.summary()
            assert (event["kind"], event["reason"]) == ("dropped_elsewhere", "none")
            assert (event["counters"], event["protocol"]) == (REASON, PROTOCOLS[peers.protocol])
            assert event["path"] == "tc"
            assert event["service"] > 0


def test_a_packet_of_a_connection_to_what_is_a_frontend_too_is_told_once(
    node: Node, drops: DroppedPackets, peers: Peers
) -> None:
    client, vip, backend, _ = peers.connected(node)
    peers.service(node, [], "other", frontends=[backend])
    drops.ask()
    (event,) = drops.told(peers.data(client, backend))
    assert ends(event) == (client, vip, backend)


@FILTERS
def test_a_masqueraded_packet_whose_connection_has_gone_is_of_no_connection(
    node: Node, drops: DroppedPackets, peers: Peers, every_port: bool
) -> None:
    """The pair around the wire stays for a while after the other one."""
    client, _, backend, seen = peers.connected(node, outside=True, masquerade=True)
    node.pinned.map("connections").delete(node.flow("egress", peers.data(backend, client)))
    if every_port:
        node.fill_filter(1)
    for packet in (peers.data(seen, backend), peers.data(backend, seen)):
        assert drops.told(packet) == []


def test_a_masqueraded_packet_is_not_told_as_one_of_another_connection(
    node: Node, drops: DroppedPackets, peers: Peers
) -> None:
    """What was the backend is a client now, whose masqueraded packets have the key of its answers.

    Its own packets are told as they are.
    """
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    connections = node.pinned.map("connections")
    for hook, packet in (
        ("ingress", peers.data(client, vip)),
        ("egress", peers.data(backend, client)),
    ):
        connections.delete(node.flow(hook, packet))
    everyone = Policies(MASQUERADED, MASQUERADED, MASQUERADED)
    peers.service(node, [client], "other", frontends=[peers.other_vip], policies=everyone)
    peers.connect(node, backend, peers.other_vip, client)
    for packet in (peers.data(seen, backend), peers.data(backend, seen)):
        assert drops.told(packet) == []
    (event,) = drops.told(peers.data(backend, peers.other_vip))
    assert ends(event) == (backend, peers.other_vip, client)


def test_a_masqueraded_packet_whose_other_entries_were_evicted_is_of_no_other_connection(
    node: Node, drops: DroppedPackets, peers: Peers
) -> None:
    """The entry of its answers leads to what is now the masquerade of another connection."""
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    connections = node.pinned.map("connections")
    for hook, packet in (
        ("ingress", peers.data(client, vip)),
        ("egress", peers.data(backend, client)),
        ("egress", peers.data(client, backend)),
    ):
        connections.delete(node.flow(hook, packet))
    everyone = Policies(MASQUERADED, MASQUERADED, MASQUERADED)
    peers.service(node, [client], "other", frontends=[peers.other_vip], policies=everyone)
    peers.connect(node, backend, peers.other_vip, client)
    assert connections.lookup(node.flow("egress", peers.data(backend, client)))
    assert drops.told(peers.data(seen, backend)) == []
    (event,) = drops.told(peers.data(backend, peers.other_vip))
    assert ends(event) == (backend, peers.other_vip, client)


def test_a_packet_of_a_direct_flow_that_has_got_another_port_is_of_no_service(
    node: Node, drops: DroppedPackets, peers: Peers
) -> None:
    client, _, backend, _ = peers.connected(node)
    out = node.forward(peers.opening(client, backend))
    seen = peers.with_port(client, out.payload.sport)
    assert seen != client
    for packet in (peers.data(seen, backend), peers.data(backend, seen)):
        assert drops.told(packet) == []


def test_a_packet_without_a_connection_is_known_by_its_frontend(
    node: Node, drops: DroppedPackets, peers: Peers
) -> None:
    """So is the answer to it."""
    client, vip, _ = peers.served(node)
    for packet in (peers.opening(client, vip), peers.answer(vip, client)):
        (event,) = drops.told(packet, reason=UNNAMED)
        assert ends(event) == (client, vip, "")
        assert (event["counters"], event["protocol"]) == (UNNAMED, PROTOCOLS[peers.protocol])
        assert (event["masquerade"], event["path"]) == (0, "tc")
        assert event["service"] > 0


def test_a_packet_to_a_node_port_is_known_by_its_frontend(
    node: Node, drops: DroppedPackets, peers: Peers
) -> None:
    """As a socket is that asked for it: the event has the node's address."""
    entry = peers.on_node(NODE_PORT)
    peers.service(node, [peers.backend], node_port=NODE_PORT)
    (event,) = drops.told(peers.opening(peers.external, entry))
    assert ends(event) == (peers.external, entry, "")
    named(node, peers, frontend=entry)
    (event,) = drops.told(peers.data(peers.client, peers.backend), cookie=COOKIE)
    assert ends(event) == (peers.client, entry, peers.backend)


@FILTERS
def test_a_packet_of_no_service_is_not_told(
    node: Node, drops: DroppedPackets, peers: Peers, every_port: bool
) -> None:
    client, vip, backend = peers.served(node)
    if every_port:
        node.fill_filter(1)
    named(node, peers, frontend=peers.on_node(NODE_PORT))
    for to in (backend, peers.with_port(vip, 9999), peers.on_node(NODE_PORT)):
        assert drops.told(peers.opening(client, to)) == []
        assert drops.told(peers.opening(client, to), cookie=COOKIE) == []


def test_a_packet_of_a_translated_socket_is_known_by_the_socket(
    node: Node, drops: DroppedPackets, peers: Peers
) -> None:
    client, vip, backend = peers.served(node)
    named(node, peers)
    (event,) = drops.told(peers.data(client, backend), cookie=COOKIE)
    assert ends(event) == (client, vip, backend)
    assert (event["path"], event["masquerade"], event["counters"]) == ("socket", 0, REASON)
    assert event["service"] > 0


@pytest.mark.parametrize("what", ["socket", "port", "address", "service", "memory", "field"])
def test_a_packet_of_a_socket_that_is_connected_to_no_backend_is_not_told(
    node: Node, drops: DroppedPackets, peers: Peers, what: str
) -> None:
    client, _, backend = peers.served(node)
    named(
        node,
        peers,
        frontend=peers.other_vip if what == "service" else "",
        cookie=COOKIE + 1 if what == "socket" else COOKIE,
    )
    if what == "field":
        drops.ignore(unreadable="socket")
    to = {"port": peers.with_port(backend, 1), "address": peers.other_backend}.get(what, backend)
    socket = {"socket": UNREADABLE} if what == "memory" else {}
    assert drops.told(peers.data(client, to), cookie=COOKIE, **socket) == []


def test_a_packet_to_an_address_of_which_one_word_is_another_is_of_no_translated_socket(
    node: Node, drops: DroppedPackets
) -> None:
    peers = TCP_PEERS[1]
    client, _, backend = peers.served(node)
    named(node, peers)
    for other in ("[fd45::2:d:e:f:7]:8080", "[fd44:0:1:2:d:e:f:7]:8080"):
        assert drops.told(peers.data(client, other), cookie=COOKIE) == []
    assert len(drops.told(peers.data(client, backend), cookie=COOKIE)) == 1


@pytest.mark.parametrize("reason", [1, 63, 64, 255])
def test_a_reason_that_is_ignored_is_not_told(
    node: Node, drops: DroppedPackets, reason: int
) -> None:
    peers = TCP_PEERS[0]
    client, vip, _ = peers.served(node)
    drops.ignore(reason)
    assert drops.told(peers.opening(client, vip), reason=reason) == []
    for other in (reason - 1, reason + 1, reason + 256):
        (event,) = drops.told(peers.opening(client, vip), reason=other)
        assert event["counters"] == other


def test_nothing_is_told_while_nobody_asks_for_drops_elsewhere(
    node: Node, drops: DroppedPackets, tcp_peers: Peers
) -> None:
    client, vip, _ = tcp_peers.served(node)
    drops.ask("made", "dropped")
    assert drops.told(tcp_peers.opening(client, vip)) == []


def test_of_a_sample_the_others_are_not_told(
    node: Node, drops: DroppedPackets, tcp_peers: Peers
) -> None:
    client, vip, _ = tcp_peers.served(node)
    drops.ask(failures=3)
    told = [event for _ in range(200) for event in drops.told(tcp_peers.opening(client, vip))]
    assert 15 < len(told) < 95  # of 200, one of 4: 50
    assert {event["sample"] for event in told} == {4}


def later_fragment(peers: Peers) -> Packet:
    packet = peers.opening(peers.client, peers.vip)
    packet.frag = 1
    return packet


def other_version(peers: Peers) -> Packet:
    packet = peers.opening(peers.client, peers.vip)
    packet.version = 5
    return packet


def without_ports(peers: Peers) -> Packet:
    (client, _), (vip, _) = peers.client.rsplit(":", 1), peers.vip.rsplit(":", 1)
    made = ip(client.strip("[]"), vip.strip("[]"))
    return made / (ICMPv6EchoRequest() if peers.family == 6 else ICMP())


def cut(peers: Peers) -> bytes:
    """Return an IP header of 40 bytes alone."""
    packet = peers.opening(peers.client, peers.vip)
    if peers.family == 4:
        packet.ihl = 10
    return bytes(packet)[:40]


@pytest.mark.parametrize("make", [other_version, without_ports, cut])
def test_a_packet_without_ports_is_not_told(
    node: Node, drops: DroppedPackets, tcp_peers: Peers, make: Any
) -> None:
    tcp_peers.served(node)
    assert drops.told(make(tcp_peers)) == []


def test_a_later_fragment_is_not_told(node: Node, drops: DroppedPackets) -> None:
    peers = TCP_PEERS[0]
    peers.served(node)
    assert drops.told(later_fragment(peers)) == []
    assert len(drops.told(peers.opening(peers.client, peers.vip))) == 1


@pytest.mark.parametrize("field", ["head", "network_header"])
def test_a_packet_whose_headers_are_not_found_is_not_told(
    node: Node, drops: DroppedPackets, field: str
) -> None:
    peers = TCP_PEERS[0]
    client, vip, _ = peers.served(node)
    drops.ignore(unreadable=field)
    assert drops.told(peers.opening(client, vip)) == []


@pytest.mark.parametrize("what", ["skb", "head"])
def test_a_packet_that_cannot_be_read_is_not_told(
    node: Node, drops: DroppedPackets, what: str
) -> None:
    peers = TCP_PEERS[0]
    client, vip, _ = peers.served(node)
    assert drops.told(peers.opening(client, vip), **{what: UNREADABLE}) == []


@pytest.mark.parametrize("known_by", ["connection", "frontend", "socket"])
def test_what_the_full_ring_has_no_room_for_is_counted_once(
    node: Node, drops: DroppedPackets, known_by: str
) -> None:
    peers = TCP_PEERS[0]
    client, vip, backend = peers.served(node)
    packet, cookie = peers.opening(client, vip), 0
    if known_by == "connection":
        drops.ask("ended")
        peers.connect(node, client, vip, backend)
        drops.ask()
    elif known_by == "socket":
        named(node, peers)
        packet, cookie = peers.data(client, backend), COOKIE
    room = drops.events.room
    for _ in range(room + 25):
        drops.drop(packet, cookie=cookie)
    assert 0 <= node.counter("events_lost") - 25 <= 1
    assert room - 1 <= len(drops.events.read()) <= room
    assert len(drops.told(packet, cookie=cookie)) == 1
