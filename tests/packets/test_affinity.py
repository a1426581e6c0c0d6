"""A client of a Service with affinity gets the same backend again, until the timeout.

There are sixteen backends, so a random choice repeats once in sixteen times; a test that asserts
that a client keeps its backend opens a dozen connections.
"""

from __future__ import annotations

import time

import pytest

from bpfsvc.base.address import pack
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, PortEntries, ServicePort
from tests.packets.node import Node
from tests.packets.packet import same
from tests.packets.peers import Peers, address_of

SECONDS = 6
"""Seconds. Few, because the clock of a machine that has just started shows few, too."""

TIMES = 12


def backends_of(peers: Peers, numbers: range = range(16)) -> list[str]:
    return [peers.with_port(peers.backend, 9000 + number) for number in numbers]


class Clients:
    """Connections of clients, each from another port."""

    def __init__(self, node: Node, peers: Peers) -> None:
        self.node = node
        self.peers = peers
        self.port = 20000

    def connect(self, client: str = "", frontend: str = "") -> str:
        """Open a connection from a client's address; return the backend."""
        self.port += 1
        source = self.peers.with_port(client or self.peers.client, self.port)
        out = self.node.ingress(self.peers.opening(source, frontend or self.peers.vip))
        return self.peers.with_port(out.dst, out.payload.dport)

    def connect_often(self, client: str = "", frontend: str = "") -> set[str]:
        """Open many connections; return all their backends."""
        return {self.connect(client, frontend) for _ in range(TIMES)}


@pytest.fixture
def clients(node: Node, peers: Peers) -> Clients:
    """Clients of a service of sixteen backends and two frontends, with affinity."""
    peers.service(
        node, backends_of(peers), frontends=[peers.vip, peers.other_vip], affinity=SECONDS
    )
    return Clients(node, peers)


def ages(node: Node) -> list[float]:
    """Return the ages in seconds of the affinity entries."""
    record = node.pinned.layout.maps["affinities"].value
    entries = (record.unpack(value) for _, value in node.pinned.map("affinities").items())
    return [time.monotonic() - int(entry["seen"]) / 1e9 for entry in entries]


def test_a_client_keeps_its_backend(clients: Clients, peers: Peers) -> None:
    for client in (peers.client, peers.external, peers.on_node(1)):
        assert len(clients.connect_often(client)) == 1


def test_clients_are_spread_over_the_backends(clients: Clients, peers: Peers) -> None:
    network = {4: "192.168.50.", 6: "fd50::"}[peers.family]
    seen = {clients.connect(f"{network}{number}") for number in range(100, 120)}
    assert len(seen) > 4


def test_all_frontends_of_a_service_port_share_their_affinity(
    clients: Clients, peers: Peers
) -> None:
    chosen = clients.connect_often()
    assert clients.connect_often(frontend=peers.other_vip) == chosen
    assert clients.connect_often() == chosen


def test_each_service_has_its_own_affinity(clients: Clients, node: Node, peers: Peers) -> None:
    third = peers.with_port(peers.vip, 443)
    peers.service(node, backends_of(peers), "other", frontends=[third], affinity=SECONDS)
    network = {4: "192.168.50.", 6: "fd50::"}[peers.family]
    pairs = []
    for number in range(100, 100 + TIMES):
        client = f"{network}{number}"
        pairs.append((clients.connect(client), clients.connect(client, third)))
        assert pairs[-1] == (clients.connect(client), clients.connect(client, third))
    assert any(one != other for one, other in pairs)


def test_a_client_gets_a_new_backend_after_the_timeout(clients: Clients, node: Node) -> None:
    seen = set()
    for _ in range(TIMES):
        seen.add(clients.connect())
        node.age_affinities(SECONDS + 1)
    assert len(seen) > 1


def test_a_client_that_returns_within_the_timeout_keeps_its_backend_forever(
    clients: Clients, node: Node
) -> None:
    seen = set()
    for _ in range(TIMES):
        seen.add(clients.connect())
        node.age_affinities(SECONDS - 1)
    assert len(seen) == 1


def test_only_a_new_connection_restarts_the_timeout(
    clients: Clients, node: Node, peers: Peers
) -> None:
    backend = clients.connect()
    source = peers.with_port(peers.client, clients.port)
    node.age_affinities(SECONDS - 1)
    for _ in range(3):
        node.forward(peers.data(source, peers.vip))
        node.forward(peers.answer(backend, source))
        node.forward(peers.opening(source, peers.vip))
    (age,) = ages(node)
    assert age >= SECONDS - 1
    clients.connect()
    (age,) = ages(node)
    assert age < 2


def test_a_first_packet_that_was_refused_or_passed_unchanged_makes_no_affinity_entry(
    node: Node, peers: Peers
) -> None:
    peers.service(node, [], affinity=SECONDS)
    node.run("ingress", peers.opening(peers.client, peers.vip))
    node.ingress(peers.opening(peers.client, peers.other_vip))
    node.ingress(peers.opening(peers.client, peers.backend))
    assert node.count("affinities") == 0


def test_affinity_of_a_masqueraded_client_is_by_its_own_address(node: Node, peers: Peers) -> None:
    peers.service(node, backends_of(peers), masquerade=True, affinity=SECONDS)
    clients = Clients(node, peers)
    seen = {
        client: clients.connect(client)
        for client in (peers.external, peers.node_address, peers.router)
    }
    for _ in range(TIMES):
        assert {client: clients.connect(client) for client in seen} == seen


def test_a_client_keeps_its_backend_during_a_rollout_that_keeps_it(
    clients: Clients, node: Node, peers: Peers
) -> None:
    kept = clients.connect()
    frontends = [peers.vip, peers.other_vip]
    for number in range(1, 5):
        others = backends_of(peers, range(100 * number, 100 * number + 15))
        others.insert(number * 3, kept)
        peers.service(node, others, frontends=frontends, affinity=SECONDS)
        assert clients.connect_often() == {kept}


def test_a_client_whose_backend_is_gone_gets_another_and_keeps_that(
    clients: Clients, node: Node, peers: Peers
) -> None:
    frontends = [peers.vip, peers.other_vip]
    remaining = backends_of(peers)
    for _ in range(4):
        gone = clients.connect()
        remaining.remove(gone)
        peers.service(node, remaining, frontends=frontends, affinity=SECONDS)
        chosen = clients.connect_often()
        assert len(chosen) == 1
        assert chosen <= set(remaining)


def test_affinity_can_be_turned_off_and_on_for_a_live_service(
    clients: Clients, node: Node, peers: Peers
) -> None:
    frontends = [peers.vip, peers.other_vip]
    for _ in range(2):
        assert len(clients.connect_often()) == 1
        peers.service(node, backends_of(peers), frontends=frontends)
        assert len(clients.connect_often()) > 1
        assert node.count("positions") == 0
        peers.service(node, backends_of(peers), frontends=frontends, affinity=SECONDS)


def test_without_affinity_no_entry_is_made(node: Node, peers: Peers) -> None:
    peers.service(node, backends_of(peers))
    assert len(Clients(node, peers).connect_often()) > 1
    assert node.count("affinities") == node.count("positions") == 0


def test_a_changed_timeout_holds_at_once(clients: Clients, node: Node, peers: Peers) -> None:
    frontends = [peers.vip, peers.other_vip]
    peers.service(node, backends_of(peers), frontends=frontends, affinity=SECONDS // 2)
    seen = set()
    for _ in range(TIMES):
        seen.add(clients.connect())
        node.age_affinities(SECONDS - 1)
    assert len(seen) > 1


LOCAL = range(4, 7)
"""Which of the sixteen backends are local, too."""


@pytest.fixture
def local(node: Node, peers: Peers) -> Clients:
    """Clients of a Service; its frontend ``other_vip`` has local backends only."""
    number = PROTOCOLS[peers.protocol]
    chosen = [*range(16), *LOCAL]
    backends = tuple(Backend(pack(address_of(peers.backend)), 9000 + number) for number in chosen)
    cluster, nearby = Policy(0, 16, False, False), Policy(16, len(LOCAL), False, False)
    frontends = {
        Frontend(pack(address_of(vip)), 80, number): Policies(policy, policy, policy, SECONDS)
        for vip, policy in ((peers.vip, cluster), (peers.other_vip, nearby))
    }
    port = ServicePort("default", "web", "", number, peers.family)
    node.program({port: PortEntries(80, backends, frontends)})
    return Clients(node, peers)


def test_a_client_with_a_local_backend_keeps_it_at_the_cluster_ip(
    local: Clients, peers: Peers
) -> None:
    chosen = local.connect_often(frontend=peers.other_vip)
    assert len(chosen) == 1
    assert chosen <= set(backends_of(peers, LOCAL))
    assert local.connect_often() == chosen
    assert local.connect_often(frontend=peers.other_vip) == chosen


def test_a_remote_backend_is_not_kept_at_a_frontend_with_local_backends_only(
    local: Clients, peers: Peers
) -> None:
    network = {4: "192.168.50.", 6: "fd50::"}[peers.family]
    moved = 0
    for number in range(100, 100 + TIMES):
        client = f"{network}{number}"
        first = local.connect(client)
        chosen = local.connect_often(client, peers.other_vip)
        assert len(chosen) == 1
        assert chosen <= set(backends_of(peers, LOCAL))
        moved += {first} != chosen
        assert local.connect_often(client) == chosen, "the entry holds the last choice"
    assert moved


def test_the_remembered_backend_serves_whole_connections(
    clients: Clients, node: Node, peers: Peers
) -> None:
    backend = clients.connect()
    source = peers.with_port(peers.client, 50000)
    assert peers.connect(node, source, peers.vip, backend) == source
    assert same(node.forward(peers.data(backend, source)), peers.data(peers.vip, source))
