"""Which frontend serves a packet, and which policy its client gets."""

from __future__ import annotations

import pytest

from bpfsvc.services.entries import CLIENTS, Policies, Policy
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import Peers

PORT = 30080


def test_a_node_port_is_served_on_the_nodes_addresses(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], node_port=PORT)
    second = "192.168.60.1" if peers.family == 4 else "fd60:1:2:3:4:5:6:7"
    node.node_address(second, nodeports=True)
    for number, address in enumerate((peers.node_address, second)):
        client, frontend = (
            peers.with_port(peers.external, 5000 + number),
            peers.with_port(address, PORT),
        )
        out = node.forward(peers.opening(client, frontend))
        assert same(out, peers.opening(client, peers.backend))
        back = node.forward(peers.answer(peers.backend, client))
        assert same(back, peers.answer(frontend, client))


def test_a_node_port_is_not_served_on_other_addresses(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], node_port=PORT)
    unserved = "192.168.60.1" if peers.family == 4 else "fd60::1"
    node.node_address(unserved, nodeports=False)
    for address in (unserved, peers.router, peers.vip):
        packet = peers.opening(peers.external, peers.with_port(address, PORT))
        assert same(node.forward(packet), packet)


def test_a_node_port_of_one_family_is_not_served_in_the_other(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], node_port=PORT)
    other = ("fd50::11", "fd50::9") if peers.family == 4 else ("192.168.50.11", "192.168.50.9")
    node_address, client = (f"[{one}]" if ":" in one else one for one in other)
    packet = peers.opening(f"{client}:40000", f"{node_address}:{PORT}")
    assert same(node.forward(packet), packet)


def test_an_exact_frontend_is_preferred_to_the_wildcard(node: Node, peers: Peers) -> None:
    """An externalIP may be an address of the node."""
    exact = peers.on_node(PORT)
    peers.service(node, [peers.backend], "wildcard", node_port=PORT)
    peers.service(node, [peers.other_backend], "exact", frontends=[exact])
    out = node.forward(peers.opening(peers.external, exact))
    assert same(out, peers.opening(peers.external, peers.other_backend))


def test_an_external_ip_need_not_be_an_address_of_the_node(node: Node, peers: Peers) -> None:
    external = peers.with_port(peers.router, 80)
    peers.service(node, [peers.backend], frontends=[external])
    out = node.forward(peers.opening(peers.external, external))
    assert same(out, peers.opening(peers.external, peers.backend))
    back = node.forward(peers.answer(peers.backend, peers.external))
    assert same(back, peers.answer(external, peers.external))


@pytest.mark.parametrize("who", ["pod", "node", "other"])
def test_each_class_of_clients_has_its_own_backends(node: Node, peers: Peers, who: str) -> None:
    backends = [peers.with_port(peers.backend, 9000 + number) for number in range(3)]
    pod, own, other = (Policy(number, 1, False, False) for number in range(3))
    peers.service(node, backends, frontends=[peers.vip], policies=Policies(pod, own, other))
    client, wanted = {
        "pod": (peers.client, backends[0]),
        "node": (peers.on_node(40000), backends[1]),
        "other": (peers.external, backends[2]),
    }[who]
    assert same(node.forward(peers.opening(client, peers.vip)), peers.opening(client, wanted))


@pytest.mark.parametrize("who", ["pod", "node", "other"])
def test_masquerade_is_decided_per_class_of_clients(node: Node, peers: Peers, who: str) -> None:
    pod, own, other = (Policy(0, 1, name == who, False) for name in CLIENTS)
    policies = Policies(pod, own, other)
    peers.service(node, [peers.backend], frontends=[peers.vip], policies=policies)
    clients = {"pod": peers.client, "node": peers.on_node(40000), "other": peers.external}
    for name, client in clients.items():
        port = node.forward(peers.opening(client, peers.vip)).payload.sport
        assert (10000 <= port < 30000) == (name == who)


def test_without_local_endpoints_a_first_packet_is_dropped_and_counted(
    node: Node, peers: Peers
) -> None:
    no_backends = Policy(0, 0, False, False)
    policies = Policies(no_backends, no_backends, no_backends)
    peers.service(node, [], frontends=[peers.vip], policies=policies)
    assert node.drops("ingress", peers.opening(peers.client, peers.vip))
    assert node.counter("rejected__no_endpoints") == 0
    assert node.counter("dropped__no_endpoints") == 1
    assert node.states() == (0, 0)


def test_one_class_may_have_no_endpoints_while_another_class_has_some(
    node: Node, peers: Peers
) -> None:
    """externalTrafficPolicy: Local without a local endpoint."""
    one_backend, no_backends = Policy(0, 1, False, False), Policy(0, 0, False, False)
    policies = Policies(one_backend, one_backend, no_backends)
    peers.service(node, [peers.backend], frontends=[peers.vip], policies=policies)
    assert node.drops("ingress", peers.opening(peers.external, peers.vip))
    out = node.forward(peers.opening(peers.client, peers.vip))
    assert same(out, peers.opening(peers.client, peers.backend))


def test_a_generation_whose_backends_are_missing_misdirects_no_packet(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.other_backend], "other", frontends=[peers.other_vip])
    peers.service(node, [peers.backend])
    backends = node.pinned.map("backends")
    web = max(key for key, _ in backends.items())
    row = backends.lookup(web)
    assert row is not None
    backends.delete(web)
    assert node.drops("ingress", peers.opening(peers.client, peers.vip))
    assert node.counter("dropped__no_endpoints") == 1
    assert node.count("new_connections") == 0
    backends.update(web, row)
    out = node.forward(peers.opening(peers.client, peers.vip))
    assert same(out, peers.opening(peers.client, peers.backend))


def test_packets_to_a_removed_service_pass_unchanged(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend])
    peers.service(node, [peers.backend], frontends=[peers.other_vip])
    packet = peers.opening(peers.client, peers.vip)
    assert same(node.forward(packet), packet)


@pytest.mark.parametrize("address", ["::fd50:11", "0:0:fd50::11"])
def test_a_node_port_is_served_on_an_address_that_begins_as_a_mapped_one(
    node: Node, ipv6_peers: Peers, address: str
) -> None:
    """It has as many zeros as an IPv4 address has in the form of IPv6, or as half of one has."""
    peers = ipv6_peers
    peers.service(node, [peers.backend], node_port=PORT)
    node.node_address(address, nodeports=True)
    frontend = peers.with_port(address, PORT)
    out = node.forward(peers.opening(peers.external, frontend))
    assert same(out, peers.opening(peers.external, peers.backend))
    back = node.forward(peers.answer(peers.backend, peers.external))
    assert same(back, peers.answer(frontend, peers.external))
