"""A backend that is its own client is masqueraded if its hairpin flag is set, and only then."""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, PortEntries, ServicePort
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import Peers, address_of

CONNECTIONS = 24


def test_without_the_flag_a_backend_reaches_itself_under_its_own_address(
    node: Node, peers: Peers
) -> None:
    """As kube-proxy does for endpoints without a node name."""
    itself = peers.with_port(peers.client, 8080)
    peers.service(node, [itself], hairpin=False)
    out = node.forward(peers.opening(peers.client, peers.vip))
    assert same(out, peers.opening(peers.client, itself))


@pytest.mark.parametrize("client", ["pod", "stranger"])
def test_another_client_of_such_a_backend_keeps_its_address(
    node: Node, peers: Peers, client: str
) -> None:
    source = {"pod": peers.client, "stranger": peers.external}[client]
    peers.service(node, [peers.backend], hairpin=True)
    assert peers.connect(node, source, peers.vip, peers.backend) == source


def test_only_the_connection_of_a_backend_to_itself_is_masqueraded(
    node: Node, peers: Peers
) -> None:
    itself = peers.with_port(peers.client, 8080)
    peers.service(node, [itself, peers.backend], hairpin=True)
    results = set()
    for number in range(CONNECTIONS):
        source = peers.with_port(peers.client, 41000 + number)
        out = node.forward(peers.opening(source, peers.vip))
        results.add((out.dst, out.src))
    assert results == {
        (address_of(peers.client), peers.node_address),
        (address_of(peers.backend), address_of(peers.client)),
    }


def test_each_backend_has_its_own_flag(node: Node, peers: Peers) -> None:
    number = PROTOCOLS[peers.protocol]
    address = pack(address_of(peers.client))
    backends = (Backend(address, 8080, True), Backend(address, 8081, False))
    policy = Policy(0, 2, False, False)
    frontend = Frontend(pack(address_of(peers.vip)), 80, number)
    port = ServicePort("default", "web", "", number, peers.family)
    node.program({port: PortEntries(80, backends, {frontend: Policies(policy, policy, policy)})})
    results = set()
    for number in range(CONNECTIONS):
        source = peers.with_port(peers.client, 41000 + number)
        out = node.forward(peers.opening(source, peers.vip))
        results.add((out.payload.dport, out.src))
    assert results == {(8080, peers.node_address), (8081, address_of(peers.client))}


def test_a_policy_that_masquerades_needs_no_flag(node: Node, peers: Peers) -> None:
    everyone = Policy(0, 1, True, False)
    itself = peers.with_port(peers.client, 8080)
    policies = Policies(everyone, everyone, everyone)
    peers.service(node, [itself], frontends=[peers.vip], policies=policies)
    out = node.forward(peers.opening(peers.client, peers.vip))
    assert out.src == peers.node_address
