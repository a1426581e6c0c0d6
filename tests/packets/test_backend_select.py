"""The choice of a backend for a new connection, and that the connection keeps it."""

from __future__ import annotations

import socket
import struct
from collections import Counter

import pytest

from tests.packets.node import UNSPEC, Node
from tests.packets.packet import LINK, same, tcp
from tests.packets.peers import Peers

CONNECTIONS = 3000
QUANTILES = {2: 23.93, 3: 27.64, 7: 38.26, 16: 54.52}
"""The chi-square value that a uniform choice exceeds with p = 1e-6, by number of backends."""


def chosen(node: Node, vip: str, connections: int = CONNECTIONS) -> Counter[str]:
    """Open many IPv4 connections; count the backends' addresses."""
    frame = bytearray(bytes(LINK / tcp("10.244.1.5:0", vip)))
    counts: Counter[str] = Counter()
    for number in range(connections):
        struct.pack_into("!HH", frame, 26, 0x0AF4, 0x100 + (number >> 14))
        struct.pack_into("!H", frame, 34, 1024 + (number & 0x3FFF))
        verdict, after = node.run_frame("ingress", bytes(frame))
        assert verdict == UNSPEC
        counts[socket.inet_ntop(socket.AF_INET, after[30:34])] += 1
    return counts


def backends(count: int, start: int = 1) -> list[str]:
    return [f"10.244.9.{number}:8080" for number in range(start, start + count)]


@pytest.mark.parametrize("count", QUANTILES)
def test_new_connections_spread_uniformly(node: Node, count: int) -> None:
    node.service("web", backends(count), frontends=["10.96.0.10:80"])
    counts = chosen(node, "10.96.0.10:80")
    assert len(counts) == count
    expected = CONNECTIONS / count
    assert sum((got - expected) ** 2 / expected for got in counts.values()) < QUANTILES[count]


def test_after_a_change_no_new_connection_goes_to_a_removed_backend(node: Node) -> None:
    vip = "10.96.0.10:80"
    node.service("web", backends(4), frontends=[vip])
    assert len(chosen(node, vip, 100)) == 4
    node.service("web", backends(3, start=3), frontends=[vip])
    node.delete_entries("new_connections", "connections")
    assert set(chosen(node, vip, 300)) == {"10.244.9.3", "10.244.9.4", "10.244.9.5"}


def test_a_connection_keeps_its_backend_while_others_are_added_and_removed(
    node: Node, peers: Peers
) -> None:
    others = [peers.with_port(peers.other_backend, 9000 + number) for number in range(8)]
    peers.service(node, [peers.backend])
    seen = peers.connect(node, peers.client, peers.vip, peers.backend)
    for step in range(8):
        peers.service(node, [*others[: step + 1], peers.backend][:: 1 if step % 2 else -1])
        for _ in range(5):
            out = node.forward(peers.data(peers.client, peers.vip))
            assert same(out, peers.data(seen, peers.backend))
            back = node.forward(peers.data(peers.backend, seen))
            assert same(back, peers.data(peers.vip, peers.client))


def test_without_the_row_of_a_backend_a_first_packet_is_dropped_and_opens_nothing(
    node: Node, peers: Peers
) -> None:
    """The agent is about to replace the entries; the packet is sent again."""
    peers.service(node, [peers.backend])
    rows = node.pinned.map("backends")
    kept = list(rows.items())
    rows.delete_many([key for key, _ in kept])
    opening = peers.opening(peers.client, peers.vip)
    assert node.drops("ingress", opening)
    assert node.states() == (0, 0)
    rows.update_many(kept)
    assert same(node.forward(opening), peers.opening(peers.client, peers.backend))


def test_an_established_connection_keeps_a_backend_that_serves_no_more(
    node: Node, tcp_peers: Peers
) -> None:
    client, vip, backend, _ = tcp_peers.connected(node)
    tcp_peers.service(node, [tcp_peers.other_backend])
    assert same(node.forward(tcp(client, vip, "A")), tcp(client, backend, "A"))
    assert same(node.forward(tcp(backend, client, "A")), tcp(vip, client, "A"))
    tcp_peers.service(node, [])
    assert same(node.forward(tcp(client, vip, "A")), tcp(client, backend, "A"))
