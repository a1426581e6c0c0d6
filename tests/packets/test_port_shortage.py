"""While a backend lacks masquerade ports, not each new connection is worth a whole search."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.packets.node import SHOT, Node
from tests.packets.peers import Peers

LASTS = 10_000_000
"""A note counts for so many ns."""
URGENT, EXHAUSTED = 1, 2
"""Only ports of flows that had just ended were left; or none of them, either."""
CLOCK_MONOTONIC_COARSE = 6
"""The programs' clock. It has ticks of up to 10 ms."""
DROPPED = 0


def opened(node: Node, peers: Peers, port: int, frontend: str = "") -> int:
    """Open a connection from a port of the client; return from which one it leaves."""
    client = peers.with_port(peers.external, port)
    routed = node.ingress(peers.opening(client, frontend or peers.vip))
    verdict, out = node.run("egress", routed)
    return DROPPED if verdict == SHOT else int(out.payload.sport)


def shortages(node: Node) -> dict[bytes, tuple[int, int]]:
    """Return when each note was written, and what it says."""
    record = node.pinned.layout.maps["port_shortages"].value
    notes = [
        (key, record.unpack(value)) for key, value in node.pinned.map("port_shortages").items()
    ]
    return {key: (int(value["noted"]), int(value["shortage"])) for key, value in notes}


def note(node: Node, key: bytes, shortage: int, *, age: int = 0) -> int:
    """Write a note that is so many ns old; return its time."""
    noted = time.clock_gettime_ns(CLOCK_MONOTONIC_COARSE) - age
    record = node.pinned.layout.maps["port_shortages"].value
    value = record.pack({"noted": noted, "shortage": shortage, "zero": 0})
    node.pinned.map("port_shortages").update(key, value)
    return noted


def opened_in_time(
    node: Node, peers: Peers, key: bytes, shortage: int, before: Callable[[], object]
) -> tuple[int, int]:
    """Open a connection while a note counts; return the note's time, and as :func:`opened`."""
    while True:
        before()
        noted = note(node, key, shortage)
        result = opened(node, peers, 5005)
        if time.clock_gettime_ns(CLOCK_MONOTONIC_COARSE) - noted < LASTS:
            return noted, result


def exhausted(node: Node, peers: Peers) -> bytes:
    """Have all four ports taken, and a fifth connection dropped; return the key of the note."""
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(first=20000, ports=4)
    results = [opened(node, peers, port) for port in range(5000, 5005)]
    assert [result == DROPPED for result in results] == [False] * 4 + [True]
    ((key, (_, shortage)),) = shortages(node).items()
    assert shortage == URGENT
    return key


def end_all(node: Node) -> None:
    """Have all connections end, as if the connection GC had removed them."""
    node.delete_entries("connections", "new_connections")


def test_only_a_whole_search_for_ports_that_have_just_closed_shows_that_there_are_none(
    node: Node, peers: Peers
) -> None:
    """The first search tries 16 of them, after others; the next one tries 32."""
    key = exhausted(node, peers)
    noted, result = opened_in_time(node, peers, key, URGENT, lambda: None)
    assert result == DROPPED
    ((renewed, shortage),) = shortages(node).values()
    assert shortage == EXHAUSTED
    assert renewed >= noted


def test_right_after_a_search_without_a_port_there_is_no_other_search(
    node: Node, peers: Peers
) -> None:
    """Even if a port is free since: else a flood would cost a processor.

    The note is not renewed, or a flood would keep all others from a port for ever.
    """
    key = exhausted(node, peers)
    noted, result = opened_in_time(node, peers, key, EXHAUSTED, lambda: end_all(node))
    assert result == DROPPED
    assert shortages(node) == {key: (noted, EXHAUSTED)}
    assert node.counter("dropped__masquerade_ports_exhausted") >= 2


def test_a_while_after_a_search_without_a_port_the_next_search_finds_what_is_free(
    node: Node, peers: Peers
) -> None:
    key = exhausted(node, peers)
    end_all(node)
    note(node, key, EXHAUSTED, age=LASTS + 1_000_000)
    assert opened(node, peers, 5005) != DROPPED


def test_for_another_backend_there_is_a_search(node: Node, peers: Peers) -> None:
    key = exhausted(node, peers)
    peers.service(
        node, [peers.other_backend], "other", frontends=[peers.other_vip], masquerade=True
    )
    note(node, key, EXHAUSTED)
    assert opened(node, peers, 5005, peers.other_vip) != DROPPED


def test_right_after_an_urgent_search_the_next_one_begins_with_what_has_just_closed(
    node: Node, tcp_peers: Peers
) -> None:
    """A flood of SYNs has nearly all ports, and there is little else that a search may take."""
    peers = tcp_peers
    key = exhausted(node, peers)
    client = peers.with_port(peers.external, 5000)
    turns = node.pinned.map("masquerade_turns")
    closed = 0

    def close_first() -> None:
        """Close a connection; the next search begins with its port."""
        nonlocal closed
        end_all(node)
        note(node, key, 0)
        turns.update(bytes(4), bytes(8))
        closed = opened(node, peers, 5000)
        seen = peers.on_node(closed)
        node.forward(peers.answer(peers.backend, seen))
        node.forward(peers.data(client, peers.vip))
        peers.close(node, client, peers.vip, peers.backend, seen)
        turns.update(bytes(4), bytes(8))

    assert opened_in_time(node, peers, key, URGENT, close_first)[1] == closed
    close_first()
    assert opened(node, peers, 5005) != closed
