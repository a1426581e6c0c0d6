"""The fast path on links, where the kernel keeps tags of frames beside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from scapy.layers.l2 import Dot1Q

from tests.packets.fast_path import fast_packets, hop, prepare
from tests.packets.node import Node
from tests.packets.packet import tcp
from tests.packets.peers import TCP_PEERS, Peers
from tests.packets.wire import POD, UPLINK, Wire, wire


@pytest.fixture(scope="module")
def links(loaded: Node) -> Iterator[Wire]:
    with wire(loaded) as made:
        yield made


@pytest.mark.parametrize("peers", TCP_PEERS, ids=str)
def test_a_packet_with_a_priority_tag_takes_the_stack(
    links: Wire, node: Node, peers: Peers
) -> None:
    """Else it would leave with the tag; the stack sends it without."""
    assert links.node is node
    prepare(links.testbed, peers)
    links.clear()
    for flags, tagged in (("S", False), ("PA", True), ("PA", False)):
        packet = tcp(peers.client, peers.backend, flags)
        before = fast_packets(links.testbed)
        links.send(POD, Dot1Q(prio=5, vlan=0) / packet if tagged else packet)
        links.seen(UPLINK, hop(packet))
        assert fast_packets(links.testbed) - before == (not tagged)
