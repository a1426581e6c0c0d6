"""Two flows of one client that would have the same 5-tuple after translation."""

from __future__ import annotations

import pytest

from tests.packets.node import SHOT, Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers


def test_a_direct_connection_after_one_through_the_frontend_gets_another_port(
    node: Node, peers: Peers
) -> None:
    client, _, backend, _ = peers.connected(node)
    out = node.forward(peers.opening(client, backend))
    seen = peers.with_port(client, out.payload.sport)
    assert seen != client
    assert same(out, peers.opening(seen, backend))
    assert node.counter("source_ports_changed") == 1
    _assert_both_get_their_replies(node, peers, direct_as=seen, vip_as=client)


def test_a_connection_through_the_frontend_after_a_direct_one_gets_another_port(
    node: Node, peers: Peers
) -> None:
    client, vip, backend = peers.served(node)
    assert same(node.forward(peers.opening(client, backend)), peers.opening(client, backend))
    back = peers.answer(backend, client)
    assert same(node.forward(back), back)
    out = node.forward(peers.opening(client, vip))
    seen = peers.with_port(client, out.payload.sport)
    assert seen != client
    assert same(out, peers.opening(seen, backend))
    _assert_both_get_their_replies(node, peers, direct_as=client, vip_as=seen)


def _assert_both_get_their_replies(node: Node, peers: Peers, direct_as: str, vip_as: str) -> None:
    client, vip, backend = peers.client, peers.vip, peers.backend
    for packet in (peers.answer, peers.data):
        assert same(node.forward(packet(backend, direct_as)), packet(backend, client))
        assert same(node.forward(packet(backend, vip_as)), packet(vip, client))
        assert same(node.forward(peers.data(client, backend)), peers.data(direct_as, backend))
        assert same(node.forward(peers.data(client, vip)), peers.data(vip_as, backend))


def test_a_client_port_that_netfilter_has_led_to_the_same_backend_is_changed(
    node: Node, peers: Peers
) -> None:
    """kube-proxy's connection through another Service with that backend goes on."""
    client, vip, backend = peers.served(node)
    node.netfilter_flows((client, backend), protocol=peers.protocol)
    out = node.forward(peers.opening(client, vip))
    seen = peers.with_port(client, out.payload.sport)
    assert seen != client
    assert same(node.forward(peers.answer(backend, seen)), peers.answer(vip, client))


def test_a_retransmitted_first_packet_keeps_its_changed_port(node: Node, peers: Peers) -> None:
    client, _, backend, _ = peers.connected(node)
    first = node.forward(peers.opening(client, backend))
    assert same(node.forward(peers.opening(client, backend)), first)


def test_a_retransmitted_first_packet_of_a_direct_connection_stays_as_it_is(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    for _ in range(3):
        packet = peers.opening(peers.client, peers.backend)
        assert same(node.forward(packet), packet)
    assert node.counter("direct_flows_noticed") == 1


def test_one_client_port_works_through_two_frontends_with_the_same_backend(
    node: Node, peers: Peers
) -> None:
    client, backend = peers.client, peers.backend
    peers.service(node, [backend])
    peers.service(node, [backend], "other", frontends=[peers.other_vip])
    peers.connect(node, client, peers.vip, backend)
    seen = peers.connect(node, client, peers.other_vip, backend)
    assert seen != client
    for frontend, known_as in ((peers.vip, client), (peers.other_vip, seen)):
        out = node.forward(peers.data(client, frontend))
        assert same(out, peers.data(known_as, backend))
        back = node.forward(peers.data(backend, known_as))
        assert same(back, peers.data(frontend, client))


def test_one_client_port_works_through_two_frontends_that_masquerade(
    node: Node, peers: Peers
) -> None:
    client, backend = peers.external, peers.backend
    peers.service(node, [backend], masquerade=True)
    peers.service(node, [backend], "other", frontends=[peers.other_vip], masquerade=True)
    first = peers.connect(node, client, peers.vip, backend)
    second = peers.connect(node, client, peers.other_vip, backend)
    assert first != second
    for frontend, known_as in ((peers.vip, first), (peers.other_vip, second)):
        assert same(node.forward(peers.data(backend, known_as)), peers.data(frontend, client))
        assert same(node.forward(peers.data(client, frontend)), peers.data(known_as, backend))


def test_one_client_port_works_through_a_masqueraded_and_a_plain_frontend(
    node: Node, peers: Peers
) -> None:
    client, backend = peers.external, peers.backend
    peers.service(node, [backend], masquerade=True)
    peers.service(node, [backend], "other", frontends=[peers.other_vip])
    masqueraded = peers.connect(node, client, peers.vip, backend)
    plain = peers.connect(node, client, peers.other_vip, backend)
    assert masqueraded.startswith(peers.with_port(peers.node_address, 0)[:-1])
    assert plain != client
    back = node.forward(peers.data(backend, plain))
    assert same(back, peers.data(peers.other_vip, client))


def test_a_direct_connection_to_another_port_of_the_backend_is_passed_unchanged(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend])
    peers.connect(node, peers.client, peers.vip, peers.backend)
    packet = peers.opening(peers.client, peers.with_port(peers.backend, 9090))
    assert same(node.forward(packet), packet)
    assert node.counter("direct_flows_noticed") == 0


def test_direct_flows_of_neighbours_with_the_same_port_are_remembered(
    node: Node, peers: Peers
) -> None:
    """Their addresses differ in the last byte alone. (Of 40 flows, a few may share elements.)"""
    peers.service(node, [peers.backend])
    start = peers.client.replace("5:", "{}:").replace("5]:", "{:x}]:")
    clients = [start.format(last) for last in range(100, 140)]
    for client in clients:
        node.forward(peers.opening(client, peers.backend))
    kept = [peers.begin(node, client, peers.vip, peers.backend) == client for client in clients]
    assert sum(kept) <= 3


@pytest.mark.parametrize("target", ["direct", "other frontend"])
@pytest.mark.parametrize("masquerade", [False, True], ids=["plain", "masqueraded"])
def test_a_flow_that_waits_for_an_answer_keeps_its_port_from_another_flow(
    node: Node, peers: Peers, target: str, masquerade: bool
) -> None:
    """As conntrack does: an answer may take longer than the next flow of the same client."""
    client, backend = peers.external, peers.backend
    peers.service(node, [backend], masquerade=masquerade)
    peers.service(node, [backend], "other", frontends=[peers.other_vip], masquerade=masquerade)
    first = node.forward(peers.opening(client, peers.vip))
    node.age(20)
    asked = backend if target == "direct" else peers.other_vip
    second = node.forward(peers.opening(client, asked))
    for out, frontend in ((second, asked), (first, peers.vip)):
        seen = peers.with_port(out.src, out.payload.sport)
        assert same(node.forward(peers.answer(backend, seen)), peers.answer(frontend, client))


def end_direct(node: Node, peers: Peers, *steps: str) -> None:
    """Open a direct TCP connection, and send packets of the ``client`` and ``backend`` by flags."""
    client, backend = peers.client, peers.backend
    first, answer = peers.opening(client, backend), peers.answer(backend, client)
    assert same(node.forward(first), first)
    assert same(node.forward(answer), answer)
    for step in steps:
        name, flags = step.split()
        packet = tcp(client, backend, flags) if name == "client" else tcp(backend, client, flags)
        assert same(node.forward(packet), packet)


BY_FIN = ("client FA", "backend FA", "client A")
ENDS = {
    "both close": BY_FIN,
    "the backend closes first": ("backend FA", "client FA", "backend A"),
    "the client resets": ("client RA",),
    "the backend refuses": ("backend RA",),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_direct_connection_that_is_over_gives_its_port_back(
    node: Node, tcp_peers: Peers, how: str
) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend])
    end_direct(node, peers, *ENDS[how])
    node.age_direct(3)
    assert peers.connect(node, peers.client, peers.vip, peers.backend) == peers.client
    assert node.counter("source_ports_changed") == 0


@pytest.mark.parametrize("steps", [(), ("client FA",), ("backend FA",)], ids=str)
def test_a_direct_connection_that_one_side_has_not_closed_keeps_its_port(
    node: Node, tcp_peers: Peers, steps: tuple[str, ...]
) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend])
    end_direct(node, peers, *steps)
    node.age_direct(60000)
    assert peers.connect(node, peers.client, peers.vip, peers.backend) != peers.client


def test_a_direct_connection_that_has_just_ended_gives_its_port_only_if_there_is_no_other(
    node: Node, tcp_peers: Peers
) -> None:
    peers = tcp_peers
    port = int(peers.client.rpartition(":")[2])
    peers.service(node, [peers.backend])
    end_direct(node, peers, *BY_FIN)
    assert peers.begin(node, peers.client, peers.vip, peers.backend) != peers.client
    node.reset()
    peers.service(node, [peers.backend])
    end_direct(node, peers, *BY_FIN)
    node.settings(first=port, ports=1)
    assert peers.connect(node, peers.client, peers.vip, peers.backend) == peers.client


def test_a_port_of_a_direct_connection_that_begins_anew_is_in_use_again(
    node: Node, tcp_peers: Peers
) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend])
    end_direct(node, peers, *BY_FIN)
    end_direct(node, peers)
    node.age_direct(3)
    assert peers.connect(node, peers.client, peers.vip, peers.backend) != peers.client


def test_datagrams_of_a_direct_flow_keep_its_port_until_it_is_silent(
    node: Node, udp_peers: Peers
) -> None:
    peers = udp_peers
    peers.service(node, [peers.backend])
    for idle in (100, 100):
        node.age_direct(idle)
        node.forward(peers.opening(peers.client, peers.backend))
    assert peers.begin(node, peers.client, peers.vip, peers.backend) != peers.client
    node.reset()
    peers.service(node, [peers.backend])
    node.forward(peers.opening(peers.client, peers.backend))
    node.age_direct(121)
    assert peers.begin(node, peers.client, peers.vip, peers.backend) == peers.client


def test_the_port_of_a_connection_that_has_just_closed_is_taken_if_there_is_no_other(
    node: Node, tcp_peers: Peers
) -> None:
    """Through two frontends; the second connection comes within the time that a port waits."""
    peers = tcp_peers
    for name, frontend in (("web", peers.vip), ("other", peers.other_vip)):
        peers.service(node, [peers.backend], name, frontends=[frontend])
    node.settings(first=int(peers.client.rpartition(":")[2]), ports=1)
    seen = peers.connect(node, peers.client, peers.vip, peers.backend)
    peers.close(node, peers.client, peers.vip, peers.backend, seen)
    assert peers.connect(node, peers.client, peers.other_vip, peers.backend) == peers.client


def test_the_masquerade_port_of_a_connection_that_has_just_closed_is_taken_if_there_is_no_other(
    node: Node, tcp_peers: Peers
) -> None:
    peers = tcp_peers
    peers.service(node, [peers.backend], masquerade=True)
    node.settings(ports=1)
    seen = peers.connect(node, peers.external, peers.vip, peers.backend)
    peers.close(node, peers.external, peers.vip, peers.backend, seen)
    later = peers.with_port(peers.external, 40001)
    assert peers.connect(node, later, peers.vip, peers.backend) == seen


def test_with_no_port_left_to_change_to_the_second_connection_is_dropped_and_counted(
    node: Node, peers: Peers
) -> None:
    client, vip, backend = peers.served(node)
    node.settings(first=int(client.rpartition(":")[2]), ports=1)
    peers.connect(node, client, vip, backend)
    assert node.drops("ingress", peers.opening(client, backend))
    assert node.counter("dropped__source_ports_exhausted") == 1
    assert same(node.forward(peers.data(client, vip)), peers.data(client, backend))


def two_frontends(node: Node, peers: Peers) -> None:
    """Serve one backend by two frontends, where clients have no port but their own."""
    for name, frontend in (("web", peers.vip), ("other", peers.other_vip)):
        peers.service(node, [peers.backend], name, frontends=[frontend])
    node.settings(first=int(peers.client.rpartition(":")[2]), ports=1)


def test_the_port_of_a_connection_that_only_the_backend_has_closed_is_not_taken(
    node: Node, tcp_peers: Peers
) -> None:
    peers = tcp_peers
    two_frontends(node, peers)
    peers.connect(node, peers.client, peers.vip, peers.backend)
    node.forward(tcp(peers.backend, peers.client, "FA"))
    assert node.drops("ingress", peers.opening(peers.client, peers.other_vip))
    assert node.counter("dropped__source_ports_exhausted") == 1
    comes, goes = (peers.data(peers.client, to) for to in (peers.vip, peers.backend))
    assert same(node.forward(comes), goes)


@pytest.mark.parametrize("asks", [False, True], ids=["silent", "goes on asking"])
def test_the_port_of_a_flow_without_an_answer_is_taken_when_its_client_is_silent(
    node: Node, udp_peers: Peers, asks: bool
) -> None:
    """There is no other port."""
    peers = udp_peers
    two_frontends(node, peers)
    opening = peers.opening(peers.client, peers.vip)
    node.forward(opening)
    node.age(6)
    if asks:
        node.forward(opening)
    verdict, out = node.run("ingress", peers.opening(peers.client, peers.other_vip))
    assert node.counter("dropped__source_ports_exhausted") == asks
    if asks:
        assert verdict == SHOT
    else:
        assert same(out, peers.opening(peers.client, peers.backend))
        back = node.forward(peers.answer(peers.backend, peers.client))
        assert same(back, peers.answer(peers.other_vip, peers.client))


@pytest.mark.parametrize("pairs", [0, 1 << 20], ids=["few", "many"])
def test_a_connection_that_gets_no_port_is_not_counted_as_half_open(
    node: Node, tcp_peers: Peers, pairs: int
) -> None:
    """Of many, none is counted at all."""
    peers = tcp_peers
    two_frontends(node, peers)
    peers.connect(node, peers.client, peers.vip, peers.backend)
    node.half_open(pairs)
    entries = node.states()
    assert node.drops("ingress", peers.opening(peers.client, peers.other_vip))
    assert node.counter("dropped__source_ports_exhausted") == 1
    assert (node.held(), node.states()) == (pairs, entries)
