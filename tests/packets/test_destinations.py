"""A packet to a destination of no entry passes at once; every other packet is looked up."""

from __future__ import annotations

import random
import socket
import struct

import pytest
from scapy.layers.inet import ICMP

from bpfsvc.base.address import pack, unpack
from tests.packets.node import SHOT, UNSPEC, Node
from tests.packets.packet import ip, same, udp
from tests.packets.peers import UDP_PEERS, Peers, address_of

STRANGE = {4: "203.0.113.7", 6: "fd99::7"}


def looked_up(node: Node, address: str, port: int = 53) -> bool:
    """True if the programs look up a first datagram to an address."""
    client = "192.0.2.1:4000" if ":" not in address else "[fd98::1]:4000"
    place = f"{address}:{port}" if ":" not in address else f"[{address}]:{port}"
    verdict, _ = node.run("ingress", udp(client, place))
    assert verdict in (SHOT, UNSPEC)
    return verdict == SHOT


def test_until_all_entries_are_known_every_destination_is_looked_up(
    without_lookup: Node, udp_peers: Peers
) -> None:
    assert looked_up(without_lookup, STRANGE[udp_peers.family])


def test_only_destinations_of_entries_are_looked_up(without_lookup: Node, udp_peers: Peers) -> None:
    """These are frontends, backends and the node's own addresses; all else passes at once."""
    without_lookup.service_networks()
    udp_peers.service(without_lookup, [udp_peers.backend])
    for place in (udp_peers.vip, udp_peers.node_address):
        assert looked_up(without_lookup, address_of(place))
    for place in (STRANGE[udp_peers.family], udp_peers.other_vip, udp_peers.other_backend):
        assert not looked_up(without_lookup, address_of(place))


def test_hidden_destinations_are_left_to_others_until_they_are_shown(
    node: Node, peers: Peers
) -> None:
    """While the programs are attached one by one; a packet to the NodePort is one of them."""
    peers.service(node, [peers.backend], masquerade=True)
    opening = peers.opening(peers.external, peers.vip)
    node.destinations.hide()
    assert same(node.forward(opening), opening)
    node.destinations.show()
    assert node.forward(opening).dst == address_of(peers.backend)


def test_of_a_backend_only_its_own_port_is_looked_up(
    without_lookup: Node, udp_peers: Peers
) -> None:
    without_lookup.service_networks()
    udp_peers.service(without_lookup, [udp_peers.backend])
    backend, port = address_of(udp_peers.backend), int(udp_peers.backend.rpartition(":")[2])
    assert looked_up(without_lookup, backend, port)
    for other in (port - 1, port + 1, socket.htons(port)):
        assert not looked_up(without_lookup, backend, other)


def test_from_the_middle_of_a_connection_only_packets_to_a_frontends_address_and_port_are_looked_up(
    without_lookup: Node, tcp_peers: Peers
) -> None:
    without_lookup.service_networks()
    tcp_peers.service(without_lookup, [tcp_peers.backend])
    for place, known in (
        (tcp_peers.vip, True),
        (tcp_peers.with_port(tcp_peers.vip, 81), False),
        (tcp_peers.with_port(tcp_peers.backend, 80), False),
        (tcp_peers.backend, False),
    ):
        packet = tcp_peers.data(tcp_peers.client, place)
        assert without_lookup.drops("ingress", packet) is known, place


@pytest.mark.parametrize("family", [4, 6])
def test_service_networks_are_looked_up_by_the_network_that_contains_them_all(
    without_lookup: Node, family: int
) -> None:
    near, far = {
        4: (["10.96.0.0/16", "10.98.0.0/16"], ["10.99.255.255", "10.100.0.1", "11.96.0.1"]),
        6: (["fd96::/112", "fd96::3:0/112"], ["fd96::3:ffff", "fd96::4:0", "fd97::1"]),
    }[family]
    without_lookup.service_networks(*near)
    assert [looked_up(without_lookup, address) for address in far] == [True, False, False]


def test_networks_of_one_family_do_not_matter_for_the_other(without_lookup: Node) -> None:
    without_lookup.service_networks("10.96.0.0/16")
    assert not looked_up(without_lookup, "fd96::1")
    assert looked_up(without_lookup, "10.96.0.1")


def test_the_programs_find_the_bit_that_the_agent_sets(without_lookup: Node) -> None:
    """For any address of both families, and any port of a backend."""
    chance = random.Random(20)
    without_lookup.service_networks()
    without_lookup.destinations.refill()
    index_of = without_lookup.destinations.index_of
    places = {index_of(pack(own)) for own in ("192.168.50.11", "fd50::11")}
    backends: set[int] = set()
    for _ in range(300):
        last = chance.randbytes(4) if chance.random() < 0.5 else b""
        packed = pack("0.0.0.0")[:12] + last if last else b"\xfd" + chance.randbytes(15)
        if last and (last[0] in (0, 127) or last[0] >= 224):
            continue
        address, port = unpack(packed), chance.randrange(1, 1 << 16)
        key = packed + struct.pack("!HBx", port, socket.IPPROTO_UDP)
        shared = index_of(packed) in places
        assert looked_up(without_lookup, address, port) is (shared or index_of(key) in backends)
        without_lookup.destinations.add_keys("endpoints", [key])
        assert looked_up(without_lookup, address, port)
        backends.add(index_of(key))
        without_lookup.destinations.add([packed])
        assert looked_up(without_lookup, address)
        places.add(index_of(packed))


def test_bits_of_removed_entries_are_cleared_by_the_next_full_pass(without_lookup: Node) -> None:
    peers = UDP_PEERS[0]
    without_lookup.service_networks()
    peers.service(without_lookup, [peers.backend])
    frontends = without_lookup.pinned.map("frontends")
    frontends.delete_many([key for key, _ in frontends.items()])
    assert looked_up(without_lookup, address_of(peers.vip))
    without_lookup.tables.know_destinations()
    assert not looked_up(without_lookup, address_of(peers.vip))
    assert looked_up(without_lookup, peers.node_address)


def test_echo_requests_are_filtered_the_same_way(without_lookup: Node) -> None:
    without_lookup.service_networks("10.96.0.0/16")
    verdicts = [
        without_lookup.run("ingress", ip("192.0.2.1", to) / ICMP(type=8))[0]
        for to in ("203.0.113.7", "10.96.3.4")
    ]
    assert verdicts == [UNSPEC, SHOT]


def test_a_connection_keeps_its_translation_without_its_destination_bit(
    node: Node, peers: Peers
) -> None:
    """Only first packets need the bit."""
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    table = node.pinned.map("destinations")
    node.service_networks()
    table.update(bytes(4), (table.lookup(bytes(4)) or b"")[:64] + bytes(table.value_size - 64))
    came = node.forward(peers.data(peers.client, peers.vip))
    assert bytes(came) == bytes(peers.data(peers.client, peers.backend))


def test_a_build_that_takes_over_entries_knows_their_destinations(node: Node) -> None:
    """The full pass finds entries that another process has written."""
    peers = UDP_PEERS[0]
    peers.service(node, [peers.backend])
    table = node.pinned.map("destinations")
    table.update(bytes(4), bytes(table.value_size))
    node.tables.know_destinations()
    node.service_networks()
    came = node.forward(peers.opening(peers.client, peers.vip))
    assert bytes(came) == bytes(peers.opening(peers.client, peers.backend))
