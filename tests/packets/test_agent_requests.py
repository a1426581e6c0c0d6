"""Requests of the agent to the programs that it runs: what is no request does nothing."""

from __future__ import annotations

import struct

import pytest

from bpfsvc.datapath import syscall
from bpfsvc.datapath.maps.backend_loads import read_load
from tests.packets.node import COLLECT_HEADER, UNSPEC, Node
from tests.packets.peers import ALL_PEERS, TCP_PEERS, Peers
from tests.packets.test_gc_program import established

_HEADER = struct.Struct("=14xBB")
"""``struct recount_header``: number of records, and whether they are flows."""
_DIFFERENCE = struct.Struct("=Iii")
_SHORTEST = 14
"""Bytes of the shortest packet of a test run."""


def ask(node: Node, request: bytes) -> int:
    """Return how many connections or loads the recount has counted."""
    return syscall.program_test_run(node.pinned.program("recount"), request)[0]


def count(node: Node, *flows: bytes) -> int:
    return ask(node, _HEADER.pack(len(flows), True) + b"".join(flows))


def test_only_the_entry_that_leads_a_client_to_a_backend_is_counted_and_once(
    node: Node, tcp_peers: Peers
) -> None:
    client, vip, backend, _ = tcp_peers.connected(node)
    request = node.flow("ingress", tcp_peers.data(client, vip))
    answer = node.flow("egress", tcp_peers.data(backend, client))
    stranger = node.flow("ingress", tcp_peers.data(tcp_peers.with_port(client, 9), vip))
    assert count(node, stranger, answer) == 0
    assert count(node, stranger, request, answer) == 1
    assert count(node, request) == 0


def test_an_answer_that_comes_in_is_not_counted(node: Node, tcp_peers: Peers) -> None:
    """It is the second entry of a masqueraded connection."""
    _, _, backend, seen = tcp_peers.connected(node, outside=True, masquerade=True)
    assert count(node, node.flow("ingress", tcp_peers.data(backend, seen))) == 0


@pytest.mark.parametrize("peers", ALL_PEERS, ids=str)
def test_a_connection_is_counted_as_what_it_is(node: Node, peers: Peers) -> None:
    """SCTP is active when it is established, UDP never."""
    for opened in (False, True):
        node.reset()
        client, vip, backend = peers.served(node)
        seen = (peers.connect if opened else peers.begin)(node, client, vip, backend)
        assert count(node, node.flow("ingress", peers.data(client, vip))) == 1
        answers = node.flow("egress", peers.data(backend, seen))
        entry = node.pinned.map("connections").lookup(answers) or b""
        counters = node.pinned.layout.maps["connections"].value.unpack(entry)["counters"]
        raw = node.pinned.map("backend_loads").lookup(struct.pack("=I", counters)) or b""
        record = node.pinned.layout.maps["backend_loads"].value
        active = peers.protocol == "TCP" or (peers.protocol == "SCTP" and opened)
        assert read_load(raw, record).connections == ((1, 0) if active else (0, 1))


@pytest.mark.parametrize("pairs", [0, 1 << 20], ids=["few", "many"])
def test_a_flow_without_an_entry_is_not_counted(node: Node, tcp_peers: Peers, pairs: int) -> None:
    """Where the kernel evicts some, it is looked for in both tables."""
    client, vip, _ = tcp_peers.served(node)
    node.half_open(pairs)
    opening = tcp_peers.opening(client, vip)
    node.forward(opening)
    stranger = node.flow("ingress", tcp_peers.opening(tcp_peers.with_port(client, 9), vip))
    assert count(node, stranger) == 0
    assert count(node, stranger, node.flow("ingress", opening)) == 1


@pytest.mark.parametrize("field", ["service", "counters"])
def test_a_connection_of_no_service_or_backend_is_not_counted(node: Node, field: str) -> None:
    peers = TCP_PEERS[0]
    client, vip, *_ = peers.connected(node)
    node.set_fields("connections", **{field: 0})
    assert count(node, node.flow("ingress", peers.data(client, vip))) == 0


def test_of_a_request_that_is_cut_off_whole_records_count(node: Node) -> None:
    peers = TCP_PEERS[0]
    client, vip, *_ = peers.connected(node)
    flow = node.flow("ingress", peers.data(client, vip))
    assert ask(node, _HEADER.pack(1, True) + flow[:-1]) == 0
    differences = _DIFFERENCE.pack(1, 2, 3) + _DIFFERENCE.pack(2, 1, 1)
    assert ask(node, _HEADER.pack(2, False) + differences[:-1]) == 1
    loads = node.pinned.map("backend_loads")
    record = node.pinned.layout.maps["backend_loads"].value
    rows = [loads.lookup(struct.pack("=I", counters)) or b"" for counters in (1, 2)]
    read = [read_load(row, record) for row in rows]
    assert [load.connections for load in read] == [(2, 3), (0, 0)]


def test_what_is_shorter_than_a_header_is_no_request(node: Node) -> None:
    flow = established(node, TCP_PEERS[0])
    node.age(7)
    for program, answer in (("recount", 0), ("gc", 0), ("explain", UNSPEC)):
        fd = node.pinned.program(program)
        verdict, after = syscall.program_test_run(fd, b"\1" * _SHORTEST)
        assert (program, verdict, after) == (program, answer, b"\1" * _SHORTEST)
    assert node.count("connections") == 2
    assert node.collect(flow) == 1


def test_a_collection_that_is_cut_off_takes_whole_flows(node: Node) -> None:
    flow = established(node, TCP_PEERS[0])
    node.age(7)
    request = COLLECT_HEADER.pack(1, True, False, False, False, 0) + flow
    fd = node.pinned.program("gc")
    assert syscall.program_test_run(fd, request[:-1])[0] == 0
    assert syscall.program_test_run(fd, request)[0] == 1
