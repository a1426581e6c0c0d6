"""Two packets of one flow that two CPUs handle at the same time.

Both CPUs look for an entry before either has written one. A test does what the second CPU does
from there, after the first is ready: the step finds in the scratch entry what it would then know.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from scapy.packet import Packet

from tests.packets.loads import HALF_OPEN
from tests.packets.node import SHOT, UNSPEC, Node
from tests.packets.packet import same
from tests.packets.peers import Peers

pytestmark = pytest.mark.usefixtures("one_cpu")
"""Each CPU has a scratch entry of its own."""

MANY = 1 << 20
"""So many pairs are half open that new ones are held where the kernel evicts."""


@pytest.mark.parametrize("half_open", [0, MANY], ids=["few", "many"])
def test_of_two_first_packets_the_second_uses_the_connection_of_the_first(
    node: Node, peers: Peers, half_open: int
) -> None:
    node.half_open(half_open)
    peers.service(node, [peers.backend], masquerade=True)
    opening = peers.opening(peers.external, peers.vip)
    first = node.ingress(opening)
    entries, held = node.states(), node.held()
    verdict, second = node.run("step_open", opening)
    assert verdict == UNSPEC
    assert same(second, first)
    assert node.counter("connections_raced") == 1
    assert (node.states(), node.held()) == (entries, held)
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


@contextmanager
def hidden(node: Node, hook: str, which: str) -> Iterator[None]:
    """Have the filter of ports show no entry at a hook, but for those that are inserted meanwhile.

    So it is for a CPU that looks there just before another one inserts an entry. ``which``: the
    half of the filter, of ``source`` ports (answers) or of ``destination`` ports.
    """
    filters = node.pinned.map("port_filters")
    at_hook = [struct.pack("=I", 2 * protocol + (hook == "egress")) for protocol in range(3)]
    before = {key: filters.lookup(key) or b"" for key in at_hook}
    length = filters.value_size // 2
    for key, value in before.items():
        shown = value[length:] if which == "source" else value[:length]
        nothing = bytes(filters.value_size - len(shown))
        filters.update(key, nothing + shown if which == "source" else shown + nothing)
    yield
    for key, value in before.items():
        known = zip(value, filters.lookup(key) or b"", strict=True)
        filters.update(key, bytes(old | new for old, new in known))


@pytest.mark.parametrize("half_open", [0, MANY], ids=["few", "many"])
def test_a_masquerade_that_another_cpu_has_just_requested_is_used(
    node: Node, tcp_peers: Peers, half_open: int
) -> None:
    """Two copies of the client's SYN find that its masquerade is gone."""
    node.half_open(half_open)
    peers = tcp_peers
    peers.service(node, [peers.backend], masquerade=True)
    opening = peers.opening(peers.external, peers.vip)
    routed = node.ingress(opening)
    entries, held = node.states(), node.held()
    with hidden(node, "egress", "destination"):
        assert same(node.ingress(opening), routed)
    assert (node.states(), node.held()) == (entries, held)
    assert node.forward(opening).src == peers.node_address


def test_of_two_searches_for_a_port_the_second_finds_it_inserted_by_the_first(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    routed = node.ingress(peers.opening(peers.external, peers.vip))
    connections, key = node.pinned.map("connections"), node.flow("egress", routed)
    pending = connections.lookup(key)
    assert pending is not None
    first = node.egress(routed)
    entries = node.count("connections")
    connections.update(key, pending)
    with hidden(node, "ingress", "source"):
        assert same(node.egress(routed), first)
    assert node.count("connections") == entries


def begun_at_once(node: Node, peers: Peers, other: str) -> tuple[Packet, Packet]:
    """Have two clients begin in one tick of the clock, with searches that begin at one port.

    (So they do when all ports have had their turn.) Return the first packet of one as it has left,
    and that of the other before its port is searched for.
    """
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(ports=2)
    routed = [node.ingress(peers.opening(client, peers.vip)) for client in (peers.external, other)]
    created = time.monotonic_ns()
    for name in ("connections", "new_connections"):
        node.set_fields(name, created=created, tick=1)
    return node.egress(routed[0]), routed[1]


def similar_client(peers: Peers) -> str:
    """Return a client with the same port, and an address of which the first word is another."""
    return peers.with_port("192.168.50.10" if peers.family == 4 else "fd51::9", 40000)


@pytest.mark.parametrize("half_open", [0, MANY], ids=["few", "many"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_port_that_a_connection_of_the_same_moment_has_is_left_to_it(
    node: Node, peers: Peers, when: str, half_open: int
) -> None:
    """``meanwhile``: between the look-up of the port and the insertion."""
    node.half_open(half_open)
    other = similar_client(peers)
    first, routed = begun_at_once(node, peers, other)
    with hidden(node, "ingress", "source") if when == "meanwhile" else nullcontext():
        second = node.egress(routed)
    assert first.payload.sport != second.payload.sport
    for client, out in ((peers.external, first), (other, second)):
        back = node.forward(
            peers.answer(peers.backend, peers.with_port(out.src, out.payload.sport))
        )
        assert same(back, peers.answer(peers.vip, client))


def test_without_room_for_its_answers_a_connection_gets_no_port(node: Node, peers: Peers) -> None:
    """Others have filled the table since its packet came in."""
    peers.service(node, [peers.backend], masquerade=True)
    opening = peers.opening(peers.external, peers.vip)
    routed = node.ingress(opening)
    connections = node.pinned.map("connections")
    record = node.pinned.layout.maps["connections"].key
    room = connections.max_entries - node.count("connections")
    others = [record.pack({"source_port": number, "hook": 1}) for number in range(room)]
    connections.update_many([(key, bytes(connections.value_size)) for key in others])
    assert node.drops("egress", routed)
    assert node.counter("dropped__connections_full") == 1
    assert node.counter("dropped__masquerade_ports_exhausted") == 0
    connections.delete_many(others)
    assert node.egress(routed).src == peers.node_address


def test_a_port_by_which_a_backend_is_a_client_itself_is_left_to_that_connection(
    node: Node, tcp_peers: Peers
) -> None:
    """An externalIP may be the node's address, with any port."""
    peers = tcp_peers
    entry = peers.on_node(10000)
    peers.service(node, [peers.other_backend], "other", frontends=[entry])
    peers.connect(node, peers.backend, entry, peers.other_backend)
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=10000, ports=1)
    routed = node.ingress(peers.opening(peers.external, peers.vip))
    node.set_fields("connections", created=time.monotonic_ns())
    assert node.drops("egress", routed)
    assert node.counter("dropped__masquerade_ports_exhausted") == 1
    comes = peers.data(peers.backend, entry)
    assert same(node.forward(comes), peers.data(peers.backend, peers.other_backend))


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
