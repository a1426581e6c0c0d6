"""Where an interface has several addresses, the next hop or the destination chooses one."""

from __future__ import annotations

import struct

import pytest

from bpfsvc.base.address import pack
from bpfsvc.inspect.maps.dump import dump
from bpfsvc.inspect.reader import PinnedReader
from tests.packets.fast_path import FastPathTestbed, prepare
from tests.packets.node import SHOT, Node
from tests.packets.peers import TCP_PEERS, Peers, address_of

OTHER = {4: "172.16.5.10", 6: "fd05::10"}
"""The second address of the interface by which packets leave."""

NUMBER = 7
"""The number of the choices of IPv6; choices of IPv4 have the number of their interface."""


def choose(node: Node, number: int, network: str, own: str) -> None:
    """Add an exception: towards ``network`` packets are masqueraded to ``own``."""
    address, _, length = network.partition("/")
    bits = int(length) + (96 if ":" not in address else 0)
    record = node.pinned.layout.maps["masquerade_choices"].key
    key = record.pack({"prefix": 32 + bits, "choices": number, "towards": pack(address)})
    node.pinned.map("masquerade_choices").update(key, pack(own))


def several_addresses(node: Node, interface: int, number_v4: int = 0, number_v6: int = 0) -> None:
    """Write the entry of an interface with addresses that depend on where packets go."""
    entry: dict[str, int | bytes] = {
        "v4": pack("192.168.50.11"),
        "v6": pack("fd50::11"),
        "choices_v4": number_v4,
        "choices_v6": number_v6,
    }
    record = node.pinned.layout.maps["interfaces"].value
    node.pinned.map("interfaces").update(struct.pack("=I", interface), record.pack(entry))


def leaves(node: Node, peers: Peers) -> str:
    """Return the address that the backend sees of a client that is masqueraded."""
    packet = node.forward(peers.opening(peers.external, peers.vip))
    return str(packet.src)


def test_the_destination_of_ipv6_chooses(node: Node, ipv6_peers: Peers) -> None:
    peers = ipv6_peers
    several_addresses(node, node.interface, number_v6=NUMBER)
    choose(node, NUMBER, "fd44:0:0:3::/64", OTHER[6])
    choose(node, NUMBER + 1, "fd44::/16", "fd66::1")
    peers.service(node, [peers.backend], masquerade=True)
    assert leaves(node, peers) == peers.node_address
    peers.service(
        node, [peers.other_backend], "other", frontends=[peers.other_vip], masquerade=True
    )
    packet = node.forward(peers.opening(peers.external, peers.other_vip))
    assert packet.src == OTHER[6]
    seen = peers.with_port(packet.src, packet.payload.sport)
    back = node.forward(peers.answer(peers.other_backend, seen))
    assert bytes(back) == bytes(peers.answer(peers.other_vip, peers.external))


def test_a_longer_prefix_counts_more(node: Node, ipv6_peers: Peers) -> None:
    several_addresses(node, node.interface, number_v6=NUMBER)
    choose(node, NUMBER, "fd44::/16", "fd66::1")
    choose(node, NUMBER, "fd44:0:0:2::/64", OTHER[6])
    ipv6_peers.service(node, [ipv6_peers.backend], masquerade=True)
    assert leaves(node, ipv6_peers) == OTHER[6]


def test_choices_of_one_family_are_not_for_the_other(node: Node, tcp_peers: Peers) -> None:
    of_ipv6 = tcp_peers.family == 6
    numbers = {"number_v4": NUMBER} if of_ipv6 else {"number_v6": NUMBER}
    several_addresses(node, node.interface, **numbers)
    choose(node, NUMBER, "::/0", OTHER[4 if of_ipv6 else 6])
    tcp_peers.service(node, [tcp_peers.backend], masquerade=True)
    assert leaves(node, tcp_peers) == tcp_peers.node_address


def test_without_a_route_the_destination_of_ipv4_is_its_next_hop(
    node: Node, ipv4_peers: Peers
) -> None:
    several_addresses(node, node.interface, number_v4=node.interface)
    choose(node, node.interface, "10.244.2.0/24", OTHER[4])
    ipv4_peers.service(node, [ipv4_peers.backend], masquerade=True)
    assert leaves(node, ipv4_peers) == OTHER[4]


@pytest.mark.parametrize("came_by", ["", "eth0"], ids=["a socket of the node", "an interface"])
def test_the_next_hop_of_ipv4_chooses_and_not_the_destination(
    fast_path_testbed: FastPathTestbed, node: Node, came_by: str
) -> None:
    """The router towards the backend is 192.168.50.12 or 172.16.5.12, the backend the same."""
    testbed, peers = fast_path_testbed, TCP_PEERS[0]
    prepare(testbed, peers)
    node.settings()
    eth0 = testbed.ends["eth0"].index
    several_addresses(node, eth0, number_v4=eth0)
    choose(node, eth0, "172.16.0.0/16", OTHER[4])
    choose(node, eth0, f"{address_of(peers.backend)}/32", "10.66.6.6")
    peers.service(node, [peers.backend], masquerade=True)
    for router, wanted in (("172.16.5.12", OTHER[4]), ("192.168.50.12", "192.168.50.11")):
        testbed.route(peers.backend, "eth0", router)
        node.pinned.map("connections").replace({})
        verdict, frame = testbed.run("ingress", "tun0", peers.opening(peers.external, peers.vip))
        assert verdict != SHOT
        out = testbed.egress("eth0", frame.payload, came_by=came_by)
        assert out.src == wanted


@pytest.mark.parametrize("way", ["by a router of IPv6", "by another interface"])
def test_the_destination_of_ipv4_chooses_where_the_route_names_no_router_of_ipv4_there(
    fast_path_testbed: FastPathTestbed, node: Node, way: str
) -> None:
    """A rule may have sent the packet another way than the route that is asked for."""
    testbed, peers = fast_path_testbed, TCP_PEERS[0]
    prepare(testbed, peers)
    node.settings()
    eth0 = testbed.ends["eth0"].index
    several_addresses(node, eth0, number_v4=eth0)
    choose(node, eth0, "172.16.0.0/16", "10.66.6.6")
    choose(node, eth0, f"{address_of(peers.backend)}/32", OTHER[4])
    peers.service(node, [peers.backend], masquerade=True)
    if way == "by another interface":
        testbed.route(peers.backend, "tun0", "172.16.5.12")
    else:
        router = ["via", "inet6", "fd50::12", "dev", "eth0"]
        testbed.here.run(["ip", "route", "replace", address_of(peers.backend), *router])
        testbed.forget_routes()
    _, frame = testbed.run("ingress", "pod0", peers.opening(peers.external, peers.vip))
    out = testbed.egress("eth0", frame.payload, came_by="pod0")
    assert out.src == OTHER[4]


def test_the_dump_names_the_interface_and_the_network(node: Node) -> None:
    choose(node, node.interface, "172.16.0.0/16", OTHER[4])
    choose(node, NUMBER, "fd44::/16", OTHER[6])
    (records,) = dump(PinnedReader(node.pinned), ["masquerade_choices"])
    assert records.columns == ("interface", "towards", "address")
    assert ("lo", "172.16.0.0/16", OTHER[4]) in records.rows
    assert any(row[1:] == ("fd44::/16", OTHER[6]) for row in records.rows)
