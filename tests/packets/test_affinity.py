"""A client of a service with affinity comes to the same backend again, while it comes in time.

There are sixteen backends: what sticks by chance does so once in sixteen times, and every test that
says that a client stays has it come a dozen times.
"""

from __future__ import annotations

import time

import pytest

from bpfsvc.address import pack
from bpfsvc.rows import PROTOCOLS, Backend, Frontend, Policies, Policy, PortRows, ServicePort
from tests.packets.node import Node, same
from tests.packets.scene import Scene, bare

SECONDS = 6
"""Short, because the clock of a machine that has just started is, too."""

TIMES = 12


def places(scene: Scene, numbers: range = range(16)) -> list[str]:
    return [scene.at(scene.backend, 9000 + number) for number in numbers]


class Clients:
    """Connections of clients, every one from a port of its own."""

    def __init__(self, node: Node, scene: Scene) -> None:
        self.node = node
        self.scene = scene
        self.port = 20000

    def come(self, client: str = "", frontend: str = "") -> str:
        """Open a connection from a client's address; give the backend."""
        self.port += 1
        source = self.scene.at(client or self.scene.client, self.port)
        out = self.node.ingress(self.scene.opening(source, frontend or self.scene.vip))
        return self.scene.at(out.dst, out.payload.dport)

    def often(self, client: str = "", frontend: str = "") -> set[str]:
        """The same many times; give all backends."""
        return {self.come(client, frontend) for _ in range(TIMES)}


@pytest.fixture
def clients(node: Node, scene: Scene) -> Clients:
    """Clients of a service of sixteen backends and two frontends, with affinity."""
    scene.service(node, places(scene), frontends=[scene.vip, scene.other_vip], affinity=SECONDS)
    return Clients(node, scene)


def ages(node: Node) -> list[float]:
    """Give how long ago the clients that are remembered opened their last connections."""
    record = node.pinned.layout.maps["affinities"].value
    rows = (record.unpack(value) for _, value in node.pinned.map("affinities").items())
    return [time.monotonic() - int(row["seen"]) / 1e9 for row in rows]


def test_a_client_stays_with_its_backend(clients: Clients, scene: Scene) -> None:
    for client in (scene.client, scene.stranger, scene.node_place(1)):
        assert len(clients.often(client)) == 1


def test_clients_are_spread_over_the_backends(clients: Clients, scene: Scene) -> None:
    network = {4: "192.168.50.", 6: "fd50::"}[scene.family]
    found = {clients.come(f"{network}{number}") for number in range(100, 120)}
    assert len(found) > 4


def test_all_frontends_of_a_service_port_remember_together(clients: Clients, scene: Scene) -> None:
    found = clients.often()
    assert clients.often(frontend=scene.other_vip) == found
    assert clients.often() == found


def test_services_remember_each_for_itself(clients: Clients, node: Node, scene: Scene) -> None:
    third = scene.at(scene.vip, 443)
    scene.service(node, places(scene), "other", frontends=[third], affinity=SECONDS)
    network = {4: "192.168.50.", 6: "fd50::"}[scene.family]
    pairs = []
    for number in range(100, 100 + TIMES):
        client = f"{network}{number}"
        pairs.append((clients.come(client), clients.come(client, third)))
        assert pairs[-1] == (clients.come(client), clients.come(client, third))
    assert any(one != other for one, other in pairs)


def test_a_client_that_comes_too_late_is_a_new_one(clients: Clients, node: Node) -> None:
    found = set()
    for _ in range(TIMES):
        found.add(clients.come())
        node.age_affinities(SECONDS + 1)
    assert len(found) > 1


def test_a_client_that_comes_in_time_stays_however_long_it_goes_on(
    clients: Clients, node: Node
) -> None:
    found = set()
    for _ in range(TIMES):
        found.add(clients.come())
        node.age_affinities(SECONDS - 1)
    assert len(found) == 1


def test_only_a_new_connection_refreshes(clients: Clients, node: Node, scene: Scene) -> None:
    backend = clients.come()
    source = scene.at(scene.client, clients.port)
    node.age_affinities(SECONDS - 1)
    for _ in range(3):
        node.forward(scene.data(source, scene.vip))
        node.forward(scene.answer(backend, source))
        node.forward(scene.opening(source, scene.vip))
    (age,) = ages(node)
    assert age >= SECONDS - 1
    clients.come()
    (age,) = ages(node)
    assert age < 2


def test_a_first_packet_that_was_refused_or_left_alone_is_not_remembered(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [], affinity=SECONDS)
    node.run("ingress", scene.opening(scene.client, scene.vip))
    node.ingress(scene.opening(scene.client, scene.other_vip))
    node.ingress(scene.opening(scene.client, scene.backend))
    assert node.count("affinities") == 0


def test_it_holds_for_a_masqueraded_client_by_its_own_address(node: Node, scene: Scene) -> None:
    scene.service(node, places(scene), masquerade=True, affinity=SECONDS)
    clients = Clients(node, scene)
    found = {client: clients.come(client) for client in (scene.stranger, scene.us, scene.router)}
    for _ in range(TIMES):
        assert {client: clients.come(client) for client in found} == found


def test_a_rollout_that_keeps_the_backend_keeps_the_client(
    clients: Clients, node: Node, scene: Scene
) -> None:
    kept = clients.come()
    frontends = [scene.vip, scene.other_vip]
    for number in range(1, 5):
        others = places(scene, range(100 * number, 100 * number + 15))
        others.insert(number * 3, kept)
        scene.service(node, others, frontends=frontends, affinity=SECONDS)
        assert clients.often() == {kept}


def test_a_client_whose_backend_is_gone_gets_another_and_stays_there(
    clients: Clients, node: Node, scene: Scene
) -> None:
    frontends = [scene.vip, scene.other_vip]
    remaining = places(scene)
    for _ in range(4):
        gone = clients.come()
        remaining.remove(gone)
        scene.service(node, remaining, frontends=frontends, affinity=SECONDS)
        found = clients.often()
        assert len(found) == 1
        assert found <= set(remaining)


def test_it_is_switched_off_and_on_for_a_live_service(
    clients: Clients, node: Node, scene: Scene
) -> None:
    frontends = [scene.vip, scene.other_vip]
    for _ in range(2):
        assert len(clients.often()) == 1
        scene.service(node, places(scene), frontends=frontends)
        assert len(clients.often()) > 1
        assert node.count("positions") == 0
        scene.service(node, places(scene), frontends=frontends, affinity=SECONDS)


def test_without_affinity_nobody_is_remembered(node: Node, scene: Scene) -> None:
    scene.service(node, places(scene))
    assert len(Clients(node, scene).often()) > 1
    assert node.count("affinities") == node.count("positions") == 0


def test_another_timeout_holds_at_once(clients: Clients, node: Node, scene: Scene) -> None:
    frontends = [scene.vip, scene.other_vip]
    scene.service(node, places(scene), frontends=frontends, affinity=SECONDS // 2)
    found = set()
    for _ in range(TIMES):
        found.add(clients.come())
        node.age_affinities(SECONDS - 1)
    assert len(found) > 1


LOCAL = range(4, 7)
"""Which of the sixteen stand in L too."""


@pytest.fixture
def local(node: Node, scene: Scene) -> Clients:
    """Clients of a service that takes those of ``other_vip`` to local backends only."""
    number = PROTOCOLS[scene.protocol]
    chosen = [*range(16), *LOCAL]
    backends = tuple(Backend(pack(bare(scene.backend)), 9000 + number) for number in chosen)
    cluster, nearby = Policy(0, 16, False, False), Policy(16, len(LOCAL), False, False)
    frontends = {
        Frontend(pack(bare(vip)), 80, number): Policies(policy, policy, policy, SECONDS)
        for vip, policy in ((scene.vip, cluster), (scene.other_vip, nearby))
    }
    port = ServicePort("default", "web", "", number, scene.family)
    node.program({port: PortRows(80, backends, frontends)})
    return Clients(node, scene)


def test_who_was_given_a_local_backend_keeps_it_at_the_cluster_ip(
    local: Clients, scene: Scene
) -> None:
    found = local.often(frontend=scene.other_vip)
    assert len(found) == 1
    assert found <= set(places(scene, LOCAL))
    assert local.often() == found
    assert local.often(frontend=scene.other_vip) == found


def test_a_remote_backend_is_not_kept_where_only_local_ones_serve(
    local: Clients, scene: Scene
) -> None:
    network = {4: "192.168.50.", 6: "fd50::"}[scene.family]
    moved = 0
    for number in range(100, 100 + TIMES):
        client = f"{network}{number}"
        first = local.come(client)
        found = local.often(client, scene.other_vip)
        assert len(found) == 1
        assert found <= set(places(scene, LOCAL))
        moved += {first} != found
        assert local.often(client) == found, "what was chosen last is what is remembered"
    assert moved


def test_the_backend_that_is_remembered_serves_whole_connections(
    clients: Clients, node: Node, scene: Scene
) -> None:
    backend = clients.come()
    source = scene.at(scene.client, 50000)
    assert scene.connect(node, source, scene.vip, backend) == source
    assert same(node.forward(scene.data(backend, source)), scene.data(scene.vip, source))
