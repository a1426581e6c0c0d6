"""Connections before they are established, and when there are too many of them.

A connection is established by what the client sends after the server's answer: with TCP the
acknowledgement. A UDP connection is also established by a server that goes on without it.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.datapath.loader.source import load
from bpfsvc.devtools.lab import sandbox
from tests.packets.node import SIZES, UNSPEC, Node
from tests.packets.packet import LINK, same, tcp
from tests.packets.peers import Peers, address_of

MANY = 1 << 20

ROWS = pytest.mark.parametrize(
    ("masquerade", "entries"), [(False, 2), (True, 4)], ids=["plain", "masqueraded"]
)


@pytest.fixture(autouse=True, params=["few", "many"])
def half_open(request: pytest.FixtureRequest, node: Node) -> str:
    """Return "few" or "many": with many half-open connections, new ones may be evicted."""
    node.half_open(MANY if request.param == "many" else 0)
    return str(request.param)


@ROWS
def test_a_connection_is_new_until_both_sides_have_sent_a_packet(
    node: Node, peers: Peers, masquerade: bool, entries: int
) -> None:
    client, vip, backend = peers.served(node, outside=True, masquerade=masquerade)
    seen = peers.begin(node, client, vip, backend)
    assert node.states() == (entries, 0)
    assert same(node.forward(peers.answer(backend, seen)), peers.answer(vip, client))
    assert node.states() == (entries, 0)
    comes, goes = peers.proof(client, vip, backend, seen)
    for _ in range(2):
        assert same(node.forward(comes), goes)
        assert node.states() == (0, entries)


def test_a_syn_that_finds_half_of_its_connection_has_the_next_one_open_it_anew(
    node: Node, tcp_peers: Peers
) -> None:
    """The kernel evicts each entry by itself, or the GC removes both while the client sends."""
    client, vip, backend = tcp_peers.served(node, outside=True)
    opening = tcp(client, vip, "S")
    node.forward(opening)
    for name in ("connections", "new_connections"):
        node.pinned.map(name).delete(node.flow("egress", tcp(backend, client)))
    assert node.drops("ingress", opening)
    node.forward(opening)
    assert same(node.forward(tcp(backend, client, "SA")), tcp(vip, client, "SA"))


@ROWS
@pytest.mark.parametrize("flags", ["A", "PA", "FA"])
def test_any_first_acknowledgement_establishes_a_connection(
    node: Node, tcp_peers: Peers, masquerade: bool, entries: int, flags: str
) -> None:
    """The ACK without data may be lost; then the first data or the FIN acknowledges."""
    client, vip, backend = tcp_peers.served(node, outside=True, masquerade=masquerade)
    seen = tcp_peers.begin(node, client, vip, backend)
    assert same(node.forward(tcp(client, vip, flags)), tcp(seen, backend, flags))
    assert node.states() == (0, entries)


@ROWS
def test_an_acknowledgement_of_nothing_does_not_establish(
    node: Node, tcp_peers: Peers, masquerade: bool, entries: int
) -> None:
    """A client with a forged address never sees the server's answer, but can send an ACK."""
    client, vip, backend = tcp_peers.served(node, outside=True, masquerade=masquerade)
    out = node.forward(tcp(client, vip))
    seen = tcp_peers.with_port(out.src, out.payload.sport)
    for flags in ("A", "PA", "FA"):
        assert same(node.forward(tcp(client, vip, flags)), tcp(seen, backend, flags))
        assert node.states() == (entries, 0)


@ROWS
def test_packets_of_the_server_do_not_establish_a_connection(
    node: Node, tcp_peers: Peers, masquerade: bool, entries: int
) -> None:
    client, vip, backend = tcp_peers.served(node, outside=True, masquerade=masquerade)
    seen = tcp_peers.begin(node, client, vip, backend)
    for flags in ("SA", "A", "PA", "FA"):
        assert same(node.forward(tcp(backend, seen, flags)), tcp(vip, client, flags))
        assert node.states() == (entries, 0)


@ROWS
def test_a_server_that_goes_on_without_its_client_establishes_a_udp_connection(
    node: Node, udp_peers: Peers, masquerade: bool, entries: int
) -> None:
    """Not by the packets of one answer: who forges an address gets those sent, too."""
    client, vip, backend = udp_peers.served(node, outside=True, masquerade=masquerade)
    seen = udp_peers.begin(node, client, vip, backend)
    now = time.monotonic_ns()
    for seconds, states in ((1, (entries, 0)), (3, (0, entries))):
        for table in ("connections", "new_connections"):
            node.set_fields(table, created=now - seconds * NS_PER_SECOND)
        assert same(node.forward(udp_peers.answer(backend, seen)), udp_peers.answer(vip, client))
        assert node.states() == states


def test_a_refused_connection_is_never_established(node: Node, tcp_peers: Peers) -> None:
    client, vip, backend = tcp_peers.served(node)
    node.forward(tcp(client, vip))
    assert same(node.forward(tcp(backend, client, "RA")), tcp(vip, client, "RA"))
    assert node.states()[1] == 0


@pytest.mark.parametrize("by", ["client", "backend"])
def test_a_connection_that_is_reset_while_half_open_is_never_established(
    node: Node, tcp_peers: Peers, by: str
) -> None:
    client, vip, backend = tcp_peers.served(node)
    tcp_peers.begin(node, client, vip, backend)
    if by == "client":
        assert same(node.forward(tcp(client, vip, "R")), tcp(client, backend, "R"))
    else:
        assert same(node.forward(tcp(backend, client, "R")), tcp(vip, client, "R"))
    assert node.states()[1] == 0


@pytest.fixture(scope="module", params=[4, 5], ids=["room for 4", "room for 5"])
def small(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A node with room for two connections or one masqueraded one, or for one more entry."""
    sandbox.require()
    sizes = replace(SIZES, max_connections=request.param, max_new_connections=512)
    node = Node(sandbox.BPF_ROOT / f"small{request.param}", load(sizes))
    yield node
    node.pinned.close()


@pytest.fixture
def small_node(small: Node) -> Node:
    small.reset()
    return small


def flood(node: Node, peers: Peers, count: int, *, answered: bool = False) -> None:
    """Send the first packets of ``count`` connections; the backend answers if ``answered``."""
    frame = bytearray(bytes(LINK / peers.opening(peers.with_port(peers.client, 1), peers.vip)))
    answer = bytearray(bytes(LINK / peers.answer(peers.backend, peers.with_port(peers.client, 1))))
    at = 14 + (20 if peers.family == 4 else 40)
    for number in range(count):
        struct.pack_into("!H", frame, at, 1024 + number)
        assert node.run_frame("ingress", bytes(frame))[0] == UNSPEC
        if answered:
            struct.pack_into("!H", answer, at + 2, 1024 + number)
            verdict, back = node.run_frame("egress", bytes(answer))
            assert (verdict, back != answer) == (UNSPEC, True)


def works(node: Node, peers: Peers, client: str, seen: str) -> bool:
    """True if an established connection is translated both ways."""
    out = node.forward(peers.data(client, peers.vip))
    back = node.forward(peers.data(peers.backend, seen))
    return same(out, peers.data(seen, peers.backend)) and same(back, peers.data(peers.vip, client))


def test_a_flood_of_first_packets_does_not_affect_established_connections(
    small_node: Node, peers: Peers
) -> None:
    peers.service(small_node, [peers.backend], masquerade=True)
    seen = peers.connect(small_node, peers.external, peers.vip, peers.backend)
    flood(small_node, peers, 3000)
    assert small_node.count("new_connections") <= 512
    assert small_node.count("connections") == 4
    assert works(small_node, peers, peers.external, seen)


def test_an_answered_flood_without_acknowledgements_establishes_nothing(
    small_node: Node, peers: Peers
) -> None:
    peers.service(small_node, [peers.backend])
    flood(small_node, peers, 3000, answered=True)
    assert small_node.count("connections") == 0
    assert small_node.counter("dropped__connections_full") == 0
    seen = peers.connect(small_node, peers.external, peers.vip, peers.backend)
    assert works(small_node, peers, peers.external, seen)


def test_an_answered_flood_does_not_affect_established_connections(
    small_node: Node, peers: Peers
) -> None:
    peers.service(small_node, [peers.backend], masquerade=True)
    seen = peers.connect(small_node, peers.external, peers.vip, peers.backend)
    flood(small_node, peers, 3000, answered=True)
    assert small_node.count("new_connections") <= 512
    assert small_node.count("connections") == 4
    assert works(small_node, peers, peers.external, seen)


def filled(node: Node, peers: Peers) -> tuple[str, str]:
    """Open as many connections as fit, and one more; return one that fits and the extra one."""
    clients = [peers.with_port(peers.client, 5000 + number) for number in range(3)]
    peers.service(node, [peers.backend])
    for client in clients[:2]:
        peers.connect(node, client, peers.vip, peers.backend)
    assert peers.begin(node, clients[2], peers.vip, peers.backend) == clients[2]
    return clients[0], clients[2]


def refuses(node: Node, peers: Peers, client: str) -> bool:
    """True if the packet that would establish the connection is dropped at ingress."""
    comes, _ = peers.proof(client, peers.vip, peers.backend, client)
    return node.drops("ingress", comes)


def test_in_a_full_map_the_establishing_packet_is_dropped_and_counted_and_others_continue(
    small_node: Node, peers: Peers
) -> None:
    first, third = filled(small_node, peers)
    assert refuses(small_node, peers, third)
    assert small_node.counter("dropped__connections_full") == 1
    assert works(small_node, peers, first, first)


def test_in_a_full_map_a_repeated_establishing_packet_is_dropped_too(
    small_node: Node, peers: Peers
) -> None:
    """Otherwise one side would be connected, and no entry would translate its next packets."""
    _, third = filled(small_node, peers)
    for times in (1, 2, 3):
        assert refuses(small_node, peers, third)
        assert small_node.counter("dropped__connections_full") == times


def test_in_a_full_map_data_is_dropped_like_the_acknowledgement(
    small_node: Node, tcp_peers: Peers
) -> None:
    """The client is connected in its own view and must get no answer until it really is."""
    _, third = filled(small_node, tcp_peers)
    assert refuses(small_node, tcp_peers, third)
    for flags in ("PA", "FA"):
        assert small_node.drops("ingress", tcp(third, tcp_peers.vip, flags))
    answer = tcp(tcp_peers.backend, third, "SA")
    assert same(small_node.forward(answer), tcp(tcp_peers.vip, third, "SA"))


def test_when_there_is_room_again_a_repeated_packet_establishes_the_connection(
    small_node: Node, peers: Peers
) -> None:
    first, third = filled(small_node, peers)
    assert refuses(small_node, peers, third)
    established = small_node.flow("ingress", peers.opening(first, peers.vip))
    assert small_node.collect(established, force=True) == 1
    comes, goes = peers.proof(third, peers.vip, peers.backend, third)
    assert same(small_node.forward(comes), goes)
    assert small_node.states() == (0, 4)
    assert works(small_node, peers, third, third)


def test_a_masqueraded_connection_that_only_half_fits_is_dropped_and_later_established(
    small_node: Node, peers: Peers
) -> None:
    external, vip, backend = peers.external, peers.vip, peers.backend
    peers.service(small_node, [backend], masquerade=True)
    peers.service(small_node, [backend], "plain", frontends=[peers.other_vip])
    peers.connect(small_node, peers.client, peers.other_vip, backend)
    seen = peers.begin(small_node, external, vip, backend)
    assert address_of(seen) != address_of(external)
    comes, goes = peers.proof(external, vip, backend, seen)
    for times in (1, 2):
        assert small_node.drops("egress", small_node.ingress(comes))
        assert small_node.counter("dropped__connections_full") == times
        assert small_node.states() == (2, 4)
    established = peers.opening(peers.client, peers.other_vip)
    assert small_node.collect(small_node.flow("ingress", established), force=True) == 1
    assert same(small_node.forward(comes), goes)
    assert small_node.states() == (0, 4)
    assert works(small_node, peers, external, seen)


def test_an_answer_to_a_connection_whose_first_entry_was_evicted_is_dropped_and_counted(
    node: Node, tcp_peers: Peers
) -> None:
    """Otherwise the client would be connected in its own view; now it sends its SYN again."""
    client, vip, backend = tcp_peers.served(node)
    node.half_open(MANY)
    node.forward(tcp(client, vip))
    node.pinned.map("new_connections").delete(node.flow("ingress", tcp(client, vip)))
    assert node.drops("egress", tcp(backend, client, "SA"))
    assert node.counter("dropped__evicted") == 1
    tcp_peers.connect(node, client, vip, backend)


@pytest.fixture
def left_over(node: Node, tcp_peers: Peers) -> Peers:
    """Two connections of one client port to one backend; of the first, one entry was evicted.

    The second, through another frontend, has taken the place of that entry.
    """
    client, backend = tcp_peers.client, tcp_peers.backend
    tcp_peers.service(node, [backend])
    tcp_peers.service(node, [backend], "other", frontends=[tcp_peers.other_vip])
    node.half_open(MANY)
    node.forward(tcp(client, tcp_peers.vip))
    node.pinned.map("new_connections").delete(node.flow("egress", tcp(backend, client)))
    assert tcp_peers.begin(node, client, tcp_peers.other_vip, backend) == client
    return tcp_peers


def test_an_entry_whose_partner_belongs_to_another_connection_is_dropped_and_counted(
    node: Node, left_over: Peers
) -> None:
    """Its packets would reach the backend as packets of the other connection."""
    client, vip, backend = left_over.client, left_over.vip, left_over.backend
    assert node.drops("ingress", tcp(client, vip, "A"))
    assert node.counter("dropped__evicted") == 1
    assert same(node.forward(tcp(client, left_over.other_vip, "A")), tcp(client, backend, "A"))
    assert node.states() == (0, 2)


@pytest.mark.parametrize("by", ["a reset", "both FINs", "the collection"])
def test_an_entry_without_its_partner_does_not_end_another_connection(
    node: Node, left_over: Peers, by: str
) -> None:
    client, vip, other_vip = left_over.client, left_over.vip, left_over.other_vip
    backend = left_over.backend
    if by == "the collection":
        node.collect(node.flow("ingress", tcp(client, vip)), force=True)
    else:
        node.run("ingress", tcp(client, vip, "R" if by == "a reset" else "FA"))
    assert same(node.forward(tcp(client, other_vip, "A")), tcp(client, backend, "A"))
    flags = "FA" if by == "both FINs" else "A"
    assert same(node.forward(tcp(backend, client, flags)), tcp(other_vip, client, flags))
    # It would be the same 5-tuple: only a closed connection gives its port away.
    assert node.ingress(tcp(client, backend)).payload.sport != tcp(client, backend).payload.sport
    assert same(node.forward(tcp(client, other_vip, "A")), tcp(client, backend, "A"))


@ROWS
def test_few_half_open_connections_are_kept_in_a_map_that_evicts_nothing(
    node: Node, peers: Peers, half_open: str, masquerade: bool, entries: int
) -> None:
    client, vip, backend = peers.served(node, outside=True, masquerade=masquerade)
    seen = peers.begin(node, client, vip, backend)
    assert node.count("connections" if half_open == "few" else "new_connections") == entries
    comes, goes = peers.proof(client, vip, backend, seen)
    assert same(node.forward(comes), goes)
    assert (node.count("connections"), node.count("new_connections")) == (entries, 0)


@ROWS
@pytest.mark.parametrize("ending", ["established", "collected", "reused"])
def test_half_open_pairs_are_counted_until_they_are_established_or_removed(
    node: Node, tcp_peers: Peers, masquerade: bool, entries: int, ending: str
) -> None:
    client, vip, backend = tcp_peers.served(node, outside=True, masquerade=masquerade)
    node.half_open(0)
    seen = tcp_peers.begin(node, client, vip, backend)
    assert node.held() == entries // 2
    if ending == "established":
        node.forward(tcp_peers.proof(client, vip, backend, seen)[0])
    elif ending == "collected":
        flows = [node.flow("ingress", tcp(client, vip)), node.flow("egress", tcp(client, backend))]
        assert node.collect(*flows, force=True) == entries // 2
    else:
        node.forward(tcp(backend, seen, "RA"))
        tcp_peers.connect(node, client, vip, backend)
    assert node.held() == 0


def test_beyond_a_share_of_the_map_half_open_connections_may_be_evicted(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    node.half_open(0)
    flood(node, peers, 200)
    assert node.held() == SIZES.max_connections // 32
    assert node.count("connections") == 2 * node.held()
    assert node.count("new_connections") == 2 * (200 - node.held())


@pytest.fixture(scope="module")
def narrow() -> Iterator[Node]:
    """A node with room for 32 connections; two may be half-open."""
    sandbox.require()
    node = Node(sandbox.BPF_ROOT / "narrow", load(replace(SIZES, max_connections=64)))
    yield node
    node.pinned.close()


def test_when_the_map_is_full_a_first_packet_is_dropped_and_counted_and_others_continue(
    narrow: Node, peers: Peers
) -> None:
    narrow.reset()
    peers.service(narrow, [peers.backend])
    clients = [peers.with_port(peers.client, 5000 + number) for number in range(33)]
    for client in clients[:32]:
        peers.connect(narrow, client, peers.vip, peers.backend)
    assert narrow.drops("ingress", peers.opening(clients[32], peers.vip))
    assert narrow.counter("dropped__connections_full") == 1
    assert narrow.held() == 0
    assert works(narrow, peers, clients[0], clients[0])
