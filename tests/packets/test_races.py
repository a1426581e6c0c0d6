"""Two packets of one flow that two CPUs handle at the same time.

Both CPUs look for an entry before either has written one. A test does what the second CPU does
from there, after the first is ready: the step finds in the scratch entry what it would then know.
"""

from __future__ import annotations

import pytest

from tests.packets.loads import HALF_OPEN
from tests.packets.node import SHOT, UNSPEC, Node
from tests.packets.packet import same
from tests.packets.peers import Peers

pytestmark = pytest.mark.usefixtures("one_cpu")
"""Each CPU has a scratch entry of its own."""

MANY = 1 << 20
"""So many pairs are half open that new ones are held where the kernel evicts."""


def test_of_two_first_packets_the_second_uses_the_connection_of_the_first(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    opening = peers.opening(peers.external, peers.vip)
    first = node.ingress(opening)
    entries, held = node.count("connections"), node.held()
    verdict, second = node.run("step_open", opening)
    assert verdict == UNSPEC
    assert same(second, first)
    assert node.counter("connections_raced") == 1
    assert (node.count("connections"), node.held()) == (entries, held)
    assert same(node.egress(second), node.egress(first))


def test_the_second_packet_passes_when_the_port_has_been_chosen_for_the_first(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    routed = node.ingress(peers.opening(peers.external, peers.vip))
    first = node.egress(routed)
    verdict, second = node.run("step_masquerade", routed)
    assert verdict == UNSPEC
    assert same(second, first)


def test_two_searches_for_a_port_at_once_find_the_same(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    routed = node.ingress(peers.opening(peers.external, peers.vip))
    connections = node.pinned.map("connections")
    key = node.flow("egress", routed)
    pending = connections.lookup(key)
    assert pending is not None
    first = node.egress(routed)
    entries = node.count("connections")
    connections.update(key, pending)
    assert same(node.egress(routed), first)
    assert node.count("connections") == entries


def test_a_pair_that_another_cpu_moves_is_left_to_it(node: Node, peers: Peers) -> None:
    """It has copied the client's entry, and would take the copies back if the others were gone."""
    client, vip, backend = peers.served(node)
    node.half_open(MANY)
    seen = peers.begin(node, client, vip, backend)
    new = node.pinned.map("new_connections")
    key = node.flow("ingress", peers.opening(client, vip))
    entry = new.lookup(key)
    assert entry is not None
    node.pinned.map("connections").update(key, entry)
    comes, goes = peers.proof(client, vip, backend, seen)
    assert same(node.forward(comes), goes)
    assert (node.count("connections"), node.count("new_connections")) == (1, 2)


def test_who_finds_the_entry_of_the_client_finds_its_masquerade(node: Node, peers: Peers) -> None:
    """It is written last: here there is room for two entries, and it would be the third.

    Otherwise a packet that another CPU handles meanwhile would leave with the client's address.
    """
    peers.service(node, [peers.backend], masquerade=True)
    node.half_open(HALF_OPEN)
    connections = node.pinned.map("connections")
    record = node.pinned.layout.maps["connections"].key
    others = [
        record.pack({"source_port": number, "hook": 1})
        for number in range(connections.max_entries - 2)
    ]
    connections.update_many([(key, bytes(connections.value_size)) for key in others])
    opening = peers.opening(peers.external, peers.vip)
    assert node.run("ingress", opening)[0] == SHOT
    assert connections.lookup(node.flow("ingress", opening)) is None
    assert node.counter("dropped__connections_full") == 1
    connections.delete_many(others)
    assert node.forward(opening).src == peers.node_address
