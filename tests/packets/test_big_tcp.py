"""BIG TCP: packets of segmentation offload that are longer than their IP header can say.

An IPv4 header then has a length of 0, and so has one of IPv6. Up to Linux 6.19 a hop-by-hop header
with the length follows that, until the packet is cut into segments. (Here the packets are short: no
program looks at their data.)
"""

from __future__ import annotations

import pytest
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop, Jumbo
from scapy.packet import Packet

from tests.packets.extension_headers import with_headers
from tests.packets.fast_path import (
    MTU,
    FastPathTestbed,
    hop,
    open_far,
    open_masqueraded,
    open_near,
    prepare,
)
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import TCP_PEERS, Peers

PAYLOAD = b"d" * 1000
LENGTH = 150_000
"""In the jumbo header."""

FORMS = [(TCP_PEERS[0], False), (TCP_PEERS[1], False), (TCP_PEERS[1], True)]


class Form:
    """A family, and whether its packets have the hop-by-hop header."""

    def __init__(self, peers: Peers, *, jumbo: bool) -> None:
        self.peers, self._jumbo = peers, jumbo
        self.gso = MTU - (40 if peers.family == 4 else 60)
        """The size of segments that fill the MTU, without that header."""

    def big(self, packet: Packet) -> Packet:
        """Return a packet as BIG TCP has it."""
        if self.peers.family == 4:
            packet = packet.copy()
            packet.len = 0
            return packet
        if self._jumbo:
            options = [Jumbo(jumboplen=LENGTH)]
            packet = with_headers(packet, IPv6ExtHdrHopByHop(options=options, autopad=0))
        packet.plen = 0
        return packet

    def data(self, source: str, destination: str) -> Packet:
        """Make a packet from the middle of a connection."""
        return self.big(self.peers.data(source, destination, PAYLOAD))

    def fast(self, testbed: FastPathTestbed, name: str, to: str, *ends: str) -> bool:
        """Send data between the first two ends; true if they get between the other two."""
        gave, wanted = self.data(*ends[:2]), hop(self.data(*ends[2:]))
        if to.startswith("pod"):
            return same(testbed.to_peer(name, gave, to=to, gso=self.gso), wanted)
        return same(testbed.to_neighbour(name, gave, gso=self.gso), wanted)


@pytest.fixture(params=FORMS, ids=["IPv4", "IPv6", "IPv6 with a jumbo header"])
def form(request: pytest.FixtureRequest) -> Form:
    return Form(request.param[0], jumbo=request.param[1])


@pytest.fixture
def testbed(fast_path_testbed: FastPathTestbed, node: Node, form: Form) -> FastPathTestbed:
    assert fast_path_testbed.node is node
    prepare(fast_path_testbed, form.peers)
    return fast_path_testbed


def test_they_are_translated_both_ways(node: Node, form: Form) -> None:
    peers = form.peers
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    assert same(node.forward(form.data(client, vip)), form.data(seen, backend))
    assert same(node.forward(form.data(backend, seen)), form.data(vip, client))


def test_they_are_fast_to_another_node_and_back(testbed: FastPathTestbed, form: Form) -> None:
    client, vip, backend = form.peers.client, form.peers.vip, form.peers.backend
    open_far(testbed, form.peers)
    assert form.fast(testbed, "pod0", "eth0", client, vip, client, backend)
    assert form.fast(testbed, "eth0", "pod0", backend, client, vip, client)


def test_they_are_fast_between_pods_of_this_node(testbed: FastPathTestbed, form: Form) -> None:
    client, vip, near = form.peers.client, form.peers.vip, form.peers.other_backend
    open_near(testbed, form.peers)
    assert form.fast(testbed, "pod0", "pod1", client, vip, client, near)
    assert form.fast(testbed, "pod1", "pod0", near, client, vip, client)


def test_they_are_fast_where_they_are_masqueraded(testbed: FastPathTestbed, form: Form) -> None:
    client, backend = form.peers.client, form.peers.backend
    entry = form.peers.on_node(30080)
    seen = open_masqueraded(testbed, form.peers, backend, "eth0")
    assert form.fast(testbed, "pod0", "eth0", client, entry, seen, backend)
    assert form.fast(testbed, "eth0", "pod0", backend, seen, entry, client)


def test_they_are_fast_without_a_service(testbed: FastPathTestbed, form: Form) -> None:
    client, backend = form.peers.client, form.peers.backend
    testbed.to_neighbour("pod0", form.peers.opening(client, backend))
    testbed.to_peer("eth0", form.peers.answer(backend, client), to="pod0")
    assert form.fast(testbed, "pod0", "eth0", client, backend, client, backend)
    assert form.fast(testbed, "eth0", "pod0", backend, client, backend, client)


def test_with_segments_that_do_not_fit_they_take_the_stack(
    testbed: FastPathTestbed, form: Form
) -> None:
    open_far(testbed, form.peers)
    data = form.data(form.peers.client, form.peers.vip)
    passed = testbed.to_stack("pod0", data, gso=form.gso + 1)
    assert same(passed, form.data(form.peers.client, form.peers.backend))


def test_a_long_packet_that_ends_within_its_header_for_long_packets_passes_unchanged(
    fast_path_testbed: FastPathTestbed, node: Node
) -> None:
    testbed, peers = fast_path_testbed, TCP_PEERS[1]
    prepare(testbed, peers)
    client, vip, _ = peers.served(node)
    whole = Form(peers, jumbo=True).data(client, vip)
    for length in range(8):
        cut = IPv6(bytes(whole)[: 40 + length])
        assert same(testbed.to_stack("pod0", cut, gso=1000), cut)
    assert sum(node.states()) == 0
