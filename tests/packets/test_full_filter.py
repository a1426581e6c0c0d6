"""Where each port is in the port filter, every packet is looked for in both tables of connections.

Nothing else changes: what has no entry is handled as where the filter tells that it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from scapy.layers.sctp import SCTPChunkAbort, SCTPChunkShutdownComplete
from scapy.packet import Packet

from tests.packets import (
    test_collisions,
    test_icmp_errors,
    test_leftovers,
    test_masquerade_ports,
    test_netfilter_ports,
)
from tests.packets.endings import ENDINGS
from tests.packets.node import SHOT, UNSPEC, Node
from tests.packets.packet import same, sctp
from tests.packets.peers import SCTP_PEERS, TCP_PEERS, UDP_PEERS, Peers
from tests.packets.queues import CLOSED, take_all
from tests.packets.test_associations import TO_BACKEND, TO_CLIENT, Association, tagged

MANY = 1 << 20
"""So many pairs are half open that new ones are held where the kernel evicts."""

TABLES = ("connections", "new_connections")

Scenario = Callable[[Node, Peers], None]


def direct_flow(node: Node, peers: Peers) -> None:
    """Send packets of a flow to a backend's own address both ways."""
    client, _, backend = peers.served(node)
    for make, answer in ((peers.opening, peers.answer), (peers.data, peers.data)):
        for packet in (make(client, backend), answer(backend, client)):
            assert same(node.forward(packet), packet)


def unrelated_flow(node: Node, peers: Peers) -> None:
    client, other = peers.client, peers.with_port(peers.other_backend, 9999)
    peers.served(node)
    for packet in (peers.opening(client, other), peers.data(other, client)):
        assert same(node.forward(packet), packet)


def again(node: Node, peers: Peers) -> None:
    """Have a connection's pair around the wire written again."""
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    pair = (("egress", peers.data(client, backend)), ("ingress", peers.data(backend, seen)))
    for hook, packet in pair:
        for name in TABLES:
            node.pinned.map(name).delete(node.flow(hook, packet))
    node.age(2)
    out = node.forward(peers.data(client, vip))
    assert out.src == peers.node_address
    back = node.forward(peers.data(backend, peers.with_port(out.src, out.payload.sport)))
    assert same(back, peers.data(vip, client))


OF_NETFILTER = "test_a_connection_of_netfilter_"
FROM_OUR_PORT, FROM_FREE_PORT = (
    getattr(test_netfilter_ports, f"{OF_NETFILTER}{rest}")
    for rest in (
        "from_a_port_of_ours_gets_another_and_both_are_answered",
        "keeps_a_port_that_is_free_and_ours_get_others",
    )
)

COMMON: dict[str, Scenario] = {
    "direct flow": direct_flow,
    "unrelated flow": unrelated_flow,
    "masqueraded anew": again,
    "direct after the frontend": (
        test_collisions.test_a_direct_connection_after_one_through_the_frontend_gets_another_port
    ),
    "the frontend after direct": (
        test_collisions.test_a_connection_through_the_frontend_after_a_direct_one_gets_another_port
    ),
    "two frontends": (
        test_collisions.test_one_client_port_works_through_two_frontends_that_masquerade
    ),
    "a port of netfilter": (
        test_collisions.test_a_client_port_that_netfilter_has_led_to_the_same_backend_is_changed
    ),
    "no port left": (
        test_masquerade_ports.test_when_all_ports_are_taken_a_connection_is_dropped_and_counted
    ),
    "netfilter has our port": partial(
        FROM_OUR_PORT,
        arrived=0,
    ),
    "netfilter has a free port": partial(
        FROM_FREE_PORT,
        arrived=0,
    ),
    "error of a router": partial(
        test_icmp_errors.test_an_error_from_a_router_about_a_masqueraded_packet,
        kind="host unreachable",
        transport=8,
    ),
    "error about another packet": partial(
        test_icmp_errors.test_a_redirect_about_another_packet_passes_unchanged, with_link=True
    ),
}


@pytest.fixture(params=[0, MANY], ids=["few", "many"])
def full(request: pytest.FixtureRequest, node: Node) -> Node:
    """A node whose filter has all ports; with many half-open connections, too."""
    node.fill_filter(1)
    node.half_open(request.param)
    return node


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("peers", [TCP_PEERS[1], UDP_PEERS[0], SCTP_PEERS[0]], ids=str)
def test_packets_are_handled_as_with_fewer_ports(full: Node, peers: Peers, name: str) -> None:
    COMMON[name](full, peers)


@ENDINGS
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_entries_of_a_closed_connection_do_not_affect_a_direct_one(
    full: Node, tcp_peers: Peers, ending: str, masquerade: bool
) -> None:
    test_leftovers.test_a_direct_connection_after_a_closed_one_passes_unchanged(
        full, tcp_peers, ending, masquerade
    )


@pytest.mark.parametrize("chunk", [SCTPChunkAbort(), SCTPChunkShutdownComplete()])
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_an_association_ends_once(
    full: Node, sctp_peers: Peers, masquerade: bool, chunk: Packet
) -> None:
    """The second chunk finds its entries as the first one has left them."""
    association = Association(full, sctp_peers, masquerade)
    association.established()
    for _ in range(2):
        association.from_backend(chunk, TO_CLIENT)
    assert len(take_all(full.pinned.map(CLOSED))) == 1
    assert association.collected() == association.pairs


@pytest.mark.usefixtures("one_cpu")
@pytest.mark.parametrize("filled", [False, True], ids=["no port", "each port"])
@pytest.mark.parametrize("step", ["step_established", "step_attempt", "step_masquerade"])
def test_a_packet_whose_entry_is_removed_before_a_step_is_dropped(
    node: Node, tcp_peers: Peers, step: str, filled: bool
) -> None:
    """It might leave untranslated. Its sender sends it again."""
    peers = tcp_peers
    client, vip, _ = peers.served(node, outside=True, masquerade=True)
    hook, packet = "ingress", peers.opening(client, vip)
    routed = node.ingress(packet)
    if step == "step_masquerade":
        hook, packet = "egress", routed
    node.run(hook, packet)
    node.delete_entries(*TABLES)
    node.fill_filter(int(filled))
    verdict, after = node.run(step, packet)
    assert (verdict, bytes(after)) == (SHOT, bytes(packet))
    assert node.states() == (0, 0)


@pytest.mark.usefixtures("one_cpu")
@pytest.mark.parametrize("filled", [False, True], ids=["no port", "each port"])
def test_an_end_whose_entries_are_removed_before_it_is_rewritten_arrives(
    node: Node, sctp_peers: Peers, filled: bool
) -> None:
    """It is known what it becomes."""
    association = Association(node, sctp_peers, masquerade=False)
    association.established()
    ends = ((association.client, association.vip), (association.seen, association.backend))
    comes, goes = (tagged(sctp(*pair, SCTPChunkAbort()), TO_BACKEND) for pair in ends)
    assert same(node.ingress(comes), goes)
    node.delete_entries(*TABLES)
    node.fill_filter(int(filled))
    verdict, after = node.run("step_rewrite", comes)
    assert verdict == UNSPEC
    assert same(after, goes)
    assert node.states() == (0, 0)


@pytest.mark.parametrize("who", ["the client", "netfilter"])
def test_without_room_for_a_pair_around_the_wire_a_packet_is_dropped(
    node: Node, tcp_peers: Peers, who: str
) -> None:
    """It would leave with another end of the connection. Nothing of it stays."""
    peers = tcp_peers
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    connections = node.pinned.map("connections")
    hook, packet = "egress", peers.opening(seen, backend)
    if who == "the client":
        hook, packet = "ingress", peers.data(client, vip)
        connections.delete(node.flow("egress", peers.data(client, backend)))
        connections.delete(node.flow("ingress", peers.data(backend, seen)))
    node.age(2)
    room = connections.max_entries - connections.count()
    record = node.pinned.layout.maps["connections"].key
    others = [record.pack({"source_port": number, "hook": 1}) for number in range(room)]
    connections.update_many([(key, bytes(connections.value_size)) for key in others])
    held = node.held()
    assert node.drops(hook, packet)
    assert node.counter("dropped__connections_full") == 1
    assert node.held() == held
    connections.delete_many(others)
    assert node.run(hook, packet)[0] == UNSPEC
