"""Entries whose partner is missing, and SYNs with rare options."""

from __future__ import annotations

import pytest

from tests.packets.node import UNSPEC, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import TCP_PEERS, Peers


def test_an_entry_without_a_partner_is_removed_but_not_while_entries_are_copied(
    node: Node, tcp_peers: Peers
) -> None:
    """The partner is only not copied yet. The packet is sent again."""
    client, vip, backend = tcp_peers.served(node)
    seen = tcp_peers.begin(node, client, vip, backend)
    packet, _ = tcp_peers.proof(client, vip, backend, seen)
    connections = node.pinned.map("connections")
    connections.delete(node.flow("egress", tcp_peers.data(backend, client)))
    node.settings(takeover=node.pinned.layout.constant("TAKEOVER_ATTACHED"))
    for _ in range(2):
        assert node.drops("ingress", packet)
    assert node.count("connections") == 1
    assert node.counter("dropped__evicted") == 0
    node.settings()
    assert node.drops("ingress", packet)
    assert node.count("connections") == 0
    assert node.counter("dropped__evicted") == 1


def test_a_closed_masquerade_without_a_partner_is_opened_anew(node: Node, tcp_peers: Peers) -> None:
    """What leaves is masqueraded as before."""
    peers = tcp_peers
    client, _, backend, seen = peers.connected(node, outside=True, masquerade=True)
    peers.close(node, client, peers.vip, backend, seen)
    connections = node.pinned.map("connections")
    connections.delete(node.flow("ingress", peers.data(backend, seen)))
    verdict, out = node.run("egress", tcp(client, backend))
    key = node.flow("egress", tcp(client, backend))
    record = node.pinned.layout.maps["connections"].value
    entry = record.unpack(connections.lookup(key) or bytes(record.size))
    assert (entry["fin_sent"], entry["fin_received"], entry["reset"]) == (0, 0, 0)
    assert entry["client_first"] == 0
    assert verdict == UNSPEC
    assert same(out, tcp(seen, backend))


def test_the_end_of_a_connection_is_noted_while_the_other_entry_is_not_copied_yet(
    node: Node, tcp_peers: Peers
) -> None:
    """The client was first, until a packet of the backend shows that both ends have crossed."""
    peers = tcp_peers
    client, vip, backend, seen = peers.connected(node)
    node.forward(tcp(client, vip, "FA"))
    node.settings(takeover=node.pinned.layout.constant("TAKEOVER_ATTACHED"))
    connections = node.pinned.map("connections")
    record = node.pinned.layout.maps["connections"].value
    connections.delete(node.flow("ingress", tcp(client, vip)))
    for flags, first in (("FA", 1), ("A", 0)):
        assert same(node.egress(tcp(backend, seen, flags)), tcp(vip, client, flags))
        raw = connections.lookup(node.flow("egress", tcp(backend, seen)))
        entry = record.unpack(raw or bytes(record.size))
        assert (entry["fin_received"], entry["fin_sent"], entry["client_first"]) == (1, 1, first)


WINDOWS = {
    "no option": ([], 0),
    "a scale": ([("WScale", 7)], 7),
    "the largest scale": ([("WScale", 14)], 14),
    "one beyond": ([("WScale", 15)], 14),
    "far beyond": ([("WScale", 255)], 14),
    "as many options as there are": ([("NOP", None)] * 17 + [("WScale", 3)], 3),
    "more options than there are": ([("NOP", None)] * 40, 0),
    "the end before it": ([("EOL", None), ("WScale", 3)], 0),
    "the end before two": ([("EOL", None), ("WScale", 1), ("WScale", 3)], 0),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_scale_of_windows_is_that_of_the_clients_syn(node: Node, name: str) -> None:
    """RFC 7323, 2.3: a larger scale than 14 is one of 14."""
    peers = TCP_PEERS[0]
    options, scale = WINDOWS[name]
    client, vip, _ = peers.served(node)
    opening = tcp(client, vip)
    opening.payload.options = options
    node.ingress(opening)
    record = node.pinned.layout.maps["connections"].value
    raw = node.pinned.map("connections").lookup(node.flow("ingress", opening))
    assert record.unpack(raw or bytes(record.size))["window_shift"] == scale + 1
