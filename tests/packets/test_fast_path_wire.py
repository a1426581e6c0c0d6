"""The fast path on links, where the kernel keeps tags of frames beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
from scapy.layers.l2 import Dot1Q

from tests.packets.fast_path import fast_packets, hop, prepare
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import TCP_PEERS, Peers
from tests.packets.wire import POD, UPLINK, Wire, wire


@pytest.fixture(scope="module")
def links(loaded: Node) -> Iterator[Wire]:
    with wire(loaded) as made:
        yield made


@pytest.fixture(params=TCP_PEERS, ids=str)
def peers(request: pytest.FixtureRequest, links: Wire, node: Node) -> Peers:
    """TCP over both families, with the fast path on."""
    assert links.node is node
    prepare(links.testbed, request.param)
    links.clear()
    return cast(Peers, request.param)


def test_a_packet_with_a_priority_tag_takes_the_stack(links: Wire, peers: Peers) -> None:
    """Else it would leave with the tag; the stack sends it without."""
    for flags, tagged in (("S", False), ("PA", True), ("PA", False)):
        packet = tcp(peers.client, peers.backend, flags)
        before = fast_packets(links.testbed)
        links.send(POD, Dot1Q(prio=5, vlan=0) / packet if tagged else packet)
        links.seen(UPLINK, hop(packet))
        assert fast_packets(links.testbed) - before == (not tagged)


def test_egress_does_not_look_at_what_leaves_by_the_fast_path(
    links: Wire, node: Node, peers: Peers
) -> None:
    """No connection is ever in this state; the test shows that the lookup is skipped."""
    client, backend = peers.client, peers.backend
    peers.service(node, [client])
    peers.connect(node, backend, peers.vip, client)
    connections = node.pinned.map("connections")
    known = list(connections.items())
    node.delete_entries("connections")
    opening, data = peers.opening(client, backend), peers.data(client, backend)
    links.send(POD, opening)
    links.seen(UPLINK, hop(opening))
    connections.update_many(known)
    after = peers.opening(peers.with_port(client, 40001), backend)
    for packet in (data, after):
        links.send(POD, packet)
    assert list(map(bytes, links.seen(UPLINK, hop(after)))) == [bytes(hop(data)), bytes(hop(after))]
    assert same(node.egress(data), peers.data(peers.vip, backend))
