"""Frontends that only some clients may use."""

from __future__ import annotations

from bpfsvc.base.address import pack
from bpfsvc.base.networks import Network
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.services.entries import (
    Backend,
    Frontend,
    Policies,
    Policy,
    PortEntries,
    ServicePort,
    range_entries,
)
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import Peers, address_of
from tests.packets.refusals import refused

STRANGERS = {4: "192.168.50.0/24", 6: "fd50::/64"}
"""The network of ``peers.external`` and of the node itself."""

ELSEWHERE = {4: "172.16.0.0/12", 6: "fd70::/16"}


def allowed(node: Node, peers: Peers, client: str, vip: str = "") -> bool:
    """True if a client is served; otherwise assert that its packet is dropped and counted."""
    before = node.counter("dropped__source_range")
    packet = peers.opening(client, vip or peers.vip)
    if node.drops("ingress", packet):
        assert node.counter("dropped__source_range") == before + 1
        return False
    assert same(node.ingress(packet), peers.opening(client, peers.backend))
    return True


def test_clients_out_of_the_ranges_are_served_and_others_are_dropped(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], ranges=[STRANGERS[peers.family]])
    assert not allowed(node, peers, peers.client)
    assert not allowed(node, peers, peers.with_port(peers.router, 40000))
    assert node.states() == (0, 0)
    assert node.counter("dropped__no_endpoints") == 0
    assert allowed(node, peers, peers.external)


def test_source_ranges_hold_for_pods_and_the_node_itself_too(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], ranges=[ELSEWHERE[peers.family]])
    assert not allowed(node, peers, peers.client)
    assert not allowed(node, peers, peers.on_node(40000))
    assert allowed(node, peers, peers.with_port(peers.router, 40000))


BOUNDS = {
    4: [
        ("192.0.2.64/26", ["192.0.2.64", "192.0.2.127"], ["192.0.2.63", "192.0.2.128"]),
        ("192.0.2.9/32", ["192.0.2.9"], ["192.0.2.8", "192.0.2.10"]),
        ("128.0.0.0/1", ["128.0.0.1", "223.0.0.1"], ["127.255.255.255", "1.0.0.1"]),
    ],
    6: [
        ("2001:db8::/33", ["2001:db8::", "2001:db8:7fff::1"], ["2001:db8:8000::", "2001:db7::1"]),
        ("2001:db8::5/128", ["2001:db8::5"], ["2001:db8::4", "2001:db8::6"]),
        ("8000::/1", ["8000::1", "fe80::1"], ["7fff::1", "2001:db8::1"]),
    ],
}


def test_a_range_has_a_first_and_a_last_address(node: Node, peers: Peers) -> None:
    for network, inside, outside in BOUNDS[peers.family]:
        peers.service(node, [peers.backend], ranges=[network])
        for address in inside:
            assert allowed(node, peers, peers.with_port(address, 40000)), (network, address)
        for address in outside:
            assert not allowed(node, peers, peers.with_port(address, 40000)), (network, address)


def test_any_of_several_ranges_suffices_however_long_its_prefix(node: Node, peers: Peers) -> None:
    narrow = {4: "192.168.50.8/30", 6: "fd50::8/126"}[peers.family]
    ranges = [narrow, STRANGERS[peers.family], ELSEWHERE[peers.family]]
    peers.service(node, [peers.backend], ranges=ranges)
    for address in (address_of(peers.external), peers.node_address, peers.router):
        assert allowed(node, peers, peers.with_port(address, 40000)), address
    assert not allowed(node, peers, peers.client)


def test_ranges_of_another_service_do_not_count(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], ranges=[ELSEWHERE[peers.family]])
    peers.service(
        node,
        [peers.backend],
        "other",
        frontends=[peers.other_vip],
        ranges=[STRANGERS[peers.family]],
    )
    assert not allowed(node, peers, peers.external)
    assert allowed(node, peers, peers.with_port(peers.external, 40001), peers.other_vip)
    elsewhere = peers.with_port(peers.router, 40000)
    assert allowed(node, peers, elsewhere)
    assert not allowed(node, peers, elsewhere, peers.other_vip)


def test_only_the_restricted_frontends_of_a_service_check_the_client(
    node: Node, peers: Peers
) -> None:
    """These are the addresses of its load balancer."""
    number = PROTOCOLS[peers.protocol]
    policy = Policy(0, 1, False, False)
    everyone = Policies(policy, policy, policy)
    backend = Backend(pack(address_of(peers.backend)), 8080)
    cluster_ip = Frontend(pack(address_of(peers.vip)), 80, number)
    vip = Frontend(pack(address_of(peers.other_vip)), 80, number)
    frontends = {cluster_ip: everyone, vip: everyone._replace(restricted=True)}
    host = Network(pack(address_of(peers.external)), 128)
    port = ServicePort("default", "web", "", number, peers.family)
    node.program({port: PortEntries(80, (backend,), frontends, range_entries((host,)))})
    assert not allowed(node, peers, peers.client, peers.other_vip)
    assert allowed(node, peers, peers.client)
    assert allowed(node, peers, peers.external, peers.other_vip)


def test_without_any_range_no_client_is_served(node: Node, peers: Peers) -> None:
    peers.service(node, [peers.backend], ranges=[])
    for client in (peers.client, peers.external, peers.on_node(40000)):
        assert not allowed(node, peers, client)


def test_without_endpoints_allowed_clients_are_refused_and_others_are_dropped(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [], ranges=[STRANGERS[peers.family]])
    assert not allowed(node, peers, peers.client)
    assert node.counter("rejected__no_endpoints") == 0
    assert refused(node, peers.opening(peers.external, peers.vip))
    assert node.counter("rejected__no_endpoints") == 1


def test_the_source_is_checked_before_masquerade(node: Node, peers: Peers) -> None:
    """The node's own address is in no range here."""
    narrow = {4: "192.168.50.9/32", 6: "fd50::9/128"}[peers.family]
    peers.service(node, [peers.backend], ranges=[narrow], masquerade=True)
    peers.connect(node, peers.external, peers.vip, peers.backend)
    assert not allowed(node, peers, peers.on_node(40000))


def test_an_established_connection_continues_when_its_client_is_no_longer_allowed(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [peers.backend], ranges=[STRANGERS[peers.family]])
    peers.connect(node, peers.external, peers.vip, peers.backend)
    peers.service(node, [peers.backend], ranges=[ELSEWHERE[peers.family]])
    out = node.forward(peers.data(peers.external, peers.vip))
    assert same(out, peers.data(peers.external, peers.backend))
    back = node.forward(peers.data(peers.backend, peers.external))
    assert same(back, peers.data(peers.vip, peers.external))
    assert not allowed(node, peers, peers.with_port(peers.external, 40001))


def test_ranges_can_be_added_and_removed_on_a_live_service(node: Node, peers: Peers) -> None:
    for number in range(3):
        client = peers.with_port(peers.client, 41000 + number)
        peers.service(node, [peers.backend], ranges=[STRANGERS[peers.family]])
        assert not allowed(node, peers, client)
        peers.service(node, [peers.backend])
        assert allowed(node, peers, client)
    assert node.count("source_ranges") == 0
