"""A connection whose end was seen is removed without reading the table of connections."""

from __future__ import annotations

import time

import pytest

from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.devtools.lab.patience import wait
from tests.packets import queues
from tests.packets.events import Events
from tests.packets.node import Node
from tests.packets.packet import tcp
from tests.packets.peers import Peers
from tests.packets.queues import CLOSED, QUEUES, TIME_WAIT
from tests.packets.test_associations import CLOCK_MONOTONIC_COARSE
from tests.packets.test_connection_gc import KEEP
from tests.packets.test_gc_program import LIFETIMES, closed_masquerade, established

CLOSED_SECONDS = LIFETIMES["tcp_closed_seconds"]

DUE = CLOSED_SECONDS + 2
"""Seconds after which a flow is taken from its queue: a second and a unit of time more."""


@pytest.fixture
def gc(node: Node) -> ConnectionGc:
    return ConnectionGc(node.pinned, KEEP, 60)


def close(node: Node, peers: Peers, *, backend_first: bool = False) -> None:
    peers.close(
        node, peers.client, peers.vip, peers.backend, peers.client, backend_first=backend_first
    )


def age(node: Node, seconds: float) -> tuple[int, ...]:
    """Age connections, and the times of their ends; return how many flows are in each queue."""
    node.age(seconds)
    return tuple(queues.age(node.pinned.map(name), seconds) for name in QUEUES)


@pytest.mark.parametrize("backend_first", [False, True])
def test_a_closed_connection_is_removed_when_it_is_over(
    node: Node, tcp_peers: Peers, gc: ConnectionGc, backend_first: bool
) -> None:
    """Whoever sends the second FIN: the entries of both directions go."""
    established(node, tcp_peers)
    close(node, tcp_peers, backend_first=backend_first)
    assert age(node, CLOSED_SECONDS) == (1, 0)
    assert gc.remove_closed() == 0
    assert node.count("connections") == 2
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 1
    assert node.count("connections") == 0
    assert age(node, DUE) == (0, 0)


def test_a_fin_is_noted_with_its_time_also_within_a_second(node: Node, tcp_peers: Peers) -> None:
    """Another packet is not. The connection GC counts from there, and an upgrade compares it."""
    established(node, tcp_peers)
    node.age(0.5)
    before = time.clock_gettime_ns(CLOCK_MONOTONIC_COARSE)
    close(node, tcp_peers)
    record = node.pinned.layout.maps["connections"].value
    entries = [record.unpack(value) for _, value in node.pinned.map("connections").items()]
    assert min(int(entry["seen"]) for entry in entries) >= before


def test_a_connection_that_was_reset_is_removed_when_it_is_over(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    established(node, tcp_peers)
    for _ in range(2):
        node.forward(tcp(tcp_peers.client, tcp_peers.vip, "R"))
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 1
    assert node.count("connections") == 0


def test_a_connection_that_was_refused_gives_back_its_place(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    """It was half open, and those are counted."""
    node.settings(**LIFETIMES)
    client, vip, backend = tcp_peers.served(node)
    node.forward(tcp(client, vip))
    node.forward(tcp(backend, client, "RA"))
    assert node.held() == 1
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 1
    assert (node.held(), node.count("connections")) == (0, 0)


def test_the_end_is_noted_once_although_fins_are_sent_again(node: Node, tcp_peers: Peers) -> None:
    established(node, tcp_peers)
    for _ in range(2):
        close(node, tcp_peers)
    assert age(node, 0) == (1, 0)


def test_a_connection_that_is_not_closed_is_not_noted(node: Node, tcp_peers: Peers) -> None:
    established(node, tcp_peers)
    node.forward(tcp(tcp_peers.client, tcp_peers.vip, "FA"))
    assert age(node, 0) == (0, 0)


def test_a_port_that_is_used_again_is_not_removed_before_it_is_closed_again(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    established(node, tcp_peers)
    close(node, tcp_peers)
    tcp_peers.connect(node, tcp_peers.client, tcp_peers.vip, tcp_peers.backend)
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 0
    assert node.count("connections") == 2
    close(node, tcp_peers)
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 1
    assert node.count("connections") == 0


def test_a_closed_connection_with_a_late_packet_is_left_to_the_sweep(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    established(node, tcp_peers)
    close(node, tcp_peers)
    assert age(node, DUE) == (1, 0)
    node.age(0)
    assert gc.remove_closed() == 0
    assert age(node, DUE) == (0, 0)
    assert gc.sweep() == 1
    assert node.count("connections") == 0


def test_of_a_closed_connection_its_masquerade_port_is_kept_until_the_backend_has_forgotten_it(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    closed_masquerade(node, tcp_peers)
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 1
    assert node.count("connections") == 2
    assert age(node, 60) == (0, 1)
    assert gc.remove_closed() == 0
    assert age(node, 62) == (0, 1)
    assert gc.remove_closed() == 1
    assert node.count("connections") == 0


def test_of_a_connection_that_its_client_closed_first_nothing_is_kept(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    closed_masquerade(node, tcp_peers, backend_first=False)
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 2
    assert node.count("connections") == 0
    assert age(node, DUE) == (0, 0)


def test_a_pair_around_the_wire_alone_has_a_place_of_its_own(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    """It belongs to a connection of netfilter that got another port: it has no Service."""
    node.settings(**LIFETIMES)
    tcp_peers.service(node, [tcp_peers.backend], masquerade=True)
    seen = tcp_peers.connect(node, tcp_peers.external, tcp_peers.vip, tcp_peers.backend)
    node.set_fields("connections", service=0, masquerade=0)
    ends = tcp_peers.external, tcp_peers.vip, tcp_peers.backend, seen
    tcp_peers.close(node, *ends, backend_first=True)
    assert age(node, DUE) == (2, 0)
    assert gc.remove_closed() == 1
    assert age(node, 62) == (0, 1)
    assert gc.remove_closed() == 1
    assert node.count("connections") == 0


@pytest.mark.parametrize("entries", [0.6, 0.8], ids=["half full", "crowded"])
def test_a_masquerade_port_is_given_back_early_when_there_is_little_room(
    node: Node, tcp_peers: Peers, gc: ConnectionGc, entries: float
) -> None:
    closed_masquerade(node, tcp_peers)
    gc.entries = int(entries * node.pinned.map("connections").max_entries)
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 2
    assert node.count("connections") == 0


def test_a_closed_connection_is_removed_early_when_the_table_is_crowded(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    established(node, tcp_peers)
    node.settings(tcp_closed_seconds=10)
    close(node, tcp_peers)
    assert age(node, 4) == (1, 0)
    assert gc.remove_closed() == 0
    gc.entries = node.pinned.map("connections").max_entries
    assert gc.remove_closed() == 1
    assert node.count("connections") == 0


def test_the_order_of_the_queue_is_the_order_of_time(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    """So what is closed later waits behind, however many there are before it."""
    node.settings(**LIFETIMES)
    tcp_peers.service(node, [tcp_peers.backend])
    for number in range(40):
        client = tcp_peers.with_port(tcp_peers.client, 5000 + number)
        tcp_peers.connect(node, client, tcp_peers.vip, tcp_peers.backend)
        tcp_peers.close(node, client, tcp_peers.vip, tcp_peers.backend, client)
    node.age(DUE)
    queue = node.pinned.map(CLOSED)
    noted = queues.take_all(queue)
    assert len(noted) == 40
    for flow in noted[:39]:
        queues.put(queue, flow, DUE)
    queues.put(queue, noted[39])
    assert gc.remove_closed() == 39
    assert node.count("connections") == 2
    assert queues.take_all(queue) == noted[39:]


def test_a_connection_that_finds_no_room_in_the_queue_is_swept(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    established(node, tcp_peers)
    queue = node.pinned.map(CLOSED)
    for _ in range(queue.max_entries):
        queues.put(queue, bytes(queue.value_size))
    close(node, tcp_peers)
    node.age(DUE)
    assert gc.remove_closed() == 0
    assert gc.sweep() == 1
    assert node.count("connections") == 0


@pytest.mark.parametrize("backend_first", [False, True])
def test_the_end_of_an_observed_connection_is_told_once(
    node: Node, tcp_peers: Peers, gc: ConnectionGc, backend_first: bool
) -> None:
    events = Events(node)
    try:
        closed_masquerade(node, tcp_peers, backend_first=backend_first)
        events.read()
        age(node, DUE)
        gc.remove_closed()
        age(node, 62)
        gc.remove_closed()
        (event,) = events.read()
    finally:
        events.close()
    assert node.count("connections") == 0
    told = event["kind"], event["reason"], event["client"], event["frontend"], event["backend"]
    assert told == ("ended", "closed", tcp_peers.external, tcp_peers.vip, tcp_peers.backend)


def test_the_agent_removes_and_sweeps_by_itself(node: Node, tcp_peers: Peers) -> None:
    """One connection is in the queue, another one is not."""
    established(node, tcp_peers)
    close(node, tcp_peers)
    other = tcp_peers.with_port(tcp_peers.client, 5000)
    tcp_peers.connect(node, other, tcp_peers.vip, tcp_peers.backend)
    assert age(node, DUE + KEEP.tcp_established) == (1, 0)
    gc = ConnectionGc(node.pinned, KEEP, 0.05)
    gc.start()
    try:
        wait(lambda: node.count("connections") == 0, "all connections are removed")
    finally:
        gc.stop()


def test_flows_without_a_connection_are_dropped(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    flow = established(node, tcp_peers)
    for name in QUEUES:
        for known in (flow, bytes(len(flow))):
            queues.put(node.pinned.map(name), known, 3600)
    assert gc.remove_closed() == 0
    assert node.count("connections") == 2
    assert age(node, 0) == (0, 0)


def test_an_older_build_without_queues_is_swept_as_ever(
    node: Node, tcp_peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GC_CLOSED", "GC_TIME_WAIT", "GC_LISTED_FLOWS"):
        monkeypatch.delitem(node.pinned.layout.constants, name)
    gc = ConnectionGc(node.pinned, KEEP, 60)
    established(node, tcp_peers)
    close(node, tcp_peers)
    assert age(node, DUE) == (1, 0)
    assert gc.remove_closed() == 0
    assert gc.sweep() == 1
    assert node.count("connections") == 0


def test_a_masquerade_that_was_used_since_is_not_taken_from_the_queue_of_those_that_wait(
    node: Node, tcp_peers: Peers, gc: ConnectionGc
) -> None:
    """A FIN that is sent again renews it. It goes when the whole table is read."""
    _, around_wire = closed_masquerade(node, tcp_peers)
    entries = node.count("connections")
    waiting = node.pinned.map(TIME_WAIT)
    queues.put(waiting, around_wire, 100)
    assert gc.remove_closed() == 0
    assert queues.take_all(waiting) == []
    assert node.count("connections") == entries
