"""Clients that reach backends with the node's own address."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import unpack
from tests.packets.node import Node
from tests.packets.packet import same, tcp, udp
from tests.packets.peers import TCP_PEERS, Peers, address_of

NOTHING = unpack(bytes(16))


def test_an_external_client_is_masqueraded_and_gets_replies_from_the_frontend(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    routed = node.ingress(peers.opening(peers.external, peers.vip))
    assert same(routed, peers.opening(peers.external, peers.backend))
    out = node.egress(routed)
    port = out.payload.sport
    seen = peers.on_node(port)
    assert 10000 <= port < 30000
    assert same(out, peers.opening(seen, peers.backend))

    routed = node.ingress(peers.answer(peers.backend, seen))
    assert same(routed, peers.answer(peers.backend, peers.external))
    assert same(node.egress(routed), peers.answer(peers.vip, peers.external))
    again = node.forward(peers.data(peers.external, peers.vip))
    assert same(again, peers.data(seen, peers.backend))


def test_a_retransmitted_first_packet_keeps_its_port(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    first = node.forward(peers.opening(peers.external, peers.vip))
    for _ in range(5):
        assert same(node.forward(peers.opening(peers.external, peers.vip)), first)


def test_a_pod_that_reaches_itself_is_masqueraded(node: Node, peers: Peers) -> None:
    """Hairpin: without it, the pod would answer itself directly and not from the frontend."""
    itself = peers.with_port(peers.client, 8080)
    peers.service(node, [itself], hairpin=True)
    out = node.forward(peers.opening(peers.client, peers.vip))
    seen = peers.on_node(out.payload.sport)
    assert same(out, peers.opening(seen, itself))
    back = node.forward(peers.answer(itself, seen))
    assert same(back, peers.answer(peers.vip, peers.client))
    again = node.forward(peers.data(peers.client, peers.vip))
    assert same(again, peers.data(seen, itself))


def test_without_an_address_on_the_interface_the_packet_is_dropped_and_counted(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], masquerade=True)
    record = node.pinned.layout.maps["interfaces"].value
    node.pinned.map("interfaces").update(node.interface.to_bytes(4, "little"), record.pack({}))
    routed = node.ingress(peers.opening(peers.external, peers.vip))
    assert node.drops("egress", routed)
    assert node.counter("dropped__no_masquerade_address") == 1
    node.masquerade_address("192.168.50.11", "fd50::11")
    out = node.forward(peers.opening(peers.external, peers.vip))
    assert out.src == peers.node_address


@pytest.mark.parametrize("address", ["fd00::", "0:0:1::", "::1:0:0:0", "::1:0:2"])
def test_an_address_of_which_only_some_words_are_not_zero_is_an_address(
    node: Node, address: str
) -> None:
    peers = TCP_PEERS[1]
    peers.service(node, [peers.backend], masquerade=True)
    node.masquerade_address("192.168.50.11", address)
    out = node.forward(peers.opening(peers.external, peers.vip))
    assert out.src == address


def test_when_the_cni_masquerades_first_the_reply_still_finds_its_frontend(
    node: Node, peers: Peers
) -> None:
    """In both directions the CNI translates after our ingress and before our egress."""
    peers.service(node, [peers.backend], masquerade=True)
    node.ingress(peers.opening(peers.external, peers.vip))
    by_cni = peers.on_node(1024)
    assert same(
        node.egress(peers.opening(by_cni, peers.backend)), peers.opening(by_cni, peers.backend)
    )
    answer = peers.answer(peers.backend, by_cni)
    assert same(node.ingress(answer), answer)
    back = node.egress(peers.answer(peers.backend, peers.external))
    assert same(back, peers.answer(peers.vip, peers.external))
    again = node.ingress(peers.data(peers.external, peers.vip))
    assert same(again, peers.data(peers.external, peers.backend))
    assert node.states() == (1, 2), "what our egress never saw stays half-open"


def test_a_reply_that_the_cni_restores_to_the_pod_comes_from_the_frontend(
    node: Node, peers: Peers
) -> None:
    """default/kubernetes: bpfsvc does not masquerade, but the reply is to the node's address."""
    peers.service(node, [peers.with_port(peers.external, 6443)])
    api = peers.with_port(peers.external, 6443)
    routed = node.ingress(peers.opening(peers.client, peers.vip))
    assert same(routed, peers.opening(peers.client, api))
    answer = peers.answer(api, peers.on_node(33333))
    assert same(node.ingress(answer), answer)
    back = node.egress(peers.answer(api, peers.client))
    assert same(back, peers.answer(peers.vip, peers.client))


def test_a_client_never_leaves_under_its_own_address_after_its_masquerade_was_lost(
    node: Node, udp_peers: Peers
) -> None:
    """Pairs have separate lifetimes: after a pause one may be removed before the next packet."""
    external, vip, backend = udp_peers.external, udp_peers.vip, udp_peers.backend
    udp_peers.service(node, [backend], masquerade=True)
    udp_peers.connect(node, external, vip, backend)
    around_the_wire = node.flow("egress", udp(external, backend))
    assert node.collect(around_the_wire, force=True) == 1
    node.age(2)
    routed = node.ingress(udp(external, vip))
    verdict, out = node.run("egress", routed)
    assert out.src != address_of(external) or verdict == 2


def test_a_reopened_connection_is_masqueraded_though_the_client_never_saw_the_reset(
    node: Node, tcp_peers: Peers
) -> None:
    """A backend's RST may be lost between the hooks; then only the outer pair is closed."""
    external, vip, backend = tcp_peers.external, tcp_peers.vip, tcp_peers.backend
    tcp_peers.service(node, [backend], masquerade=True)
    seen = tcp_peers.connect(node, external, vip, backend)
    reset = tcp_peers.opening(backend, seen)
    reset.payload.flags = "R"
    node.ingress(reset)
    verdict, out = node.run("egress", node.ingress(tcp_peers.opening(external, vip)))
    assert out.src != address_of(external) or verdict == 2


def test_a_masquerade_pair_that_was_lost_and_made_again_is_established(
    node: Node, tcp_peers: Peers
) -> None:
    """Otherwise it might be evicted, and after 5 s of silence its port would be reused."""
    external, vip, backend = tcp_peers.external, tcp_peers.vip, tcp_peers.backend
    tcp_peers.service(node, [backend], masquerade=True)
    tcp_peers.connect(node, external, vip, backend)
    around_the_wire = node.flow("egress", tcp(external, backend))
    assert node.collect(around_the_wire, force=True) == 1
    node.age(2)
    out = node.forward(tcp_peers.data(external, vip))
    seen = tcp_peers.with_port(out.src, out.payload.sport)
    back = node.forward(tcp_peers.data(backend, seen))
    assert same(back, tcp_peers.data(vip, external))
    node.forward(tcp_peers.data(external, vip))
    assert node.states() == (0, 4)


def test_a_closed_connection_whose_masquerade_was_given_up_leaves_no_address_of_its_client(
    node: Node, tcp_peers: Peers
) -> None:
    """The backend begins a connection from its own port: the pair around the wire goes then."""
    peers = tcp_peers
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    peers.close(node, client, vip, backend, seen)
    node.ingress(tcp(backend, seen, "S"))
    out = node.forward(tcp(client, vip, "A"))
    assert (out.src, out.dst) != (address_of(client), address_of(backend))


def test_a_connection_whose_masquerade_is_given_up_twice_leaves_no_address_of_its_client(
    node: Node, tcp_peers: Peers
) -> None:
    """A reset that the connection survives ends the pair around the wire that was made again."""
    client, vip, backend = tcp_peers.served(node, outside=True, masquerade=True)
    seen = tcp_peers.begin(node, client, vip, backend)
    node.forward(tcp(client, vip, "R"))
    node.ingress(tcp(backend, seen, "S"))
    out = node.forward(tcp(client, vip, "RA"))
    node.forward(tcp(client, vip, "A"))
    node.ingress(tcp(backend, tcp_peers.with_port(out.src, out.payload.sport), "S"))
    out = node.forward(tcp(client, vip, "A"))
    assert (out.src, out.dst) != (address_of(client), address_of(backend))


def test_the_pair_around_the_wire_that_a_late_packet_makes_anew_ends_with_its_connection(
    node: Node, tcp_peers: Peers
) -> None:
    """Otherwise it would masquerade what the client sends to the backend itself."""
    peers = tcp_peers
    client, vip, backend, seen = peers.connected(node, outside=True, masquerade=True)
    node.forward(tcp(client, vip, "R"))
    node.ingress(tcp(backend, seen, "S"))
    node.forward(tcp(client, vip, "A"))
    assert sum(node.states()) == 4
    node.age(20)
    flows = [key for key, _ in node.pinned.map("connections").items()]
    assert node.collect(*flows, early_ports=True) == 2
    assert sum(node.states()) == 0
    direct = tcp(client, backend, "S")
    assert same(node.forward(direct), direct)


def test_the_pair_around_the_wire_of_a_connection_that_is_gone_masquerades_nothing_else(
    node: Node, peers: Peers
) -> None:
    """It may live on for a minute, if a late packet has opened the pair anew."""
    client, vip, backend, _ = peers.connected(node, outside=True, masquerade=True)
    first = peers.opening(client, vip)
    assert node.collect(node.flow("ingress", first), force=True) == 1
    assert sum(node.states()) == 2
    direct = peers.opening(client, backend)
    assert same(node.forward(direct), direct)
    assert sum(node.states()) == 0


def test_what_leaves_by_an_interface_that_is_not_known_yet_is_dropped(
    node: Node, peers: Peers
) -> None:
    """A moment after it was made its addresses are known."""
    peers.service(node, [peers.backend], masquerade=True)
    node.pinned.map("interfaces").delete(node.interface.to_bytes(4, "little"))
    opening = peers.opening(peers.external, peers.vip)
    assert node.drops("egress", node.ingress(opening))
    assert node.counter("dropped__no_masquerade_address") == 1
    node.masquerade_address("192.168.50.11", "fd50::11")
    assert node.forward(opening).src == peers.node_address
