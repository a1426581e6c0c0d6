"""Which frontend a packet meets, and which policy its client."""

from __future__ import annotations

import pytest

from bpfsvc.rows import CLIENTS, Policies, Policy
from tests.packets.node import Node, same
from tests.packets.scene import Scene

PORT = 30080


def test_a_node_port_is_served_on_the_nodes_addresses(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], node_port=PORT)
    second = "192.168.60.1" if scene.family == 4 else "fd60::1"
    node.node_address(second, nodeports=True)
    for number, address in enumerate((scene.us, second)):
        client, frontend = scene.at(scene.stranger, 5000 + number), scene.at(address, PORT)
        out = node.forward(scene.opening(client, frontend))
        assert same(out, scene.opening(client, scene.backend))
        back = node.forward(scene.answer(scene.backend, client))
        assert same(back, scene.answer(frontend, client))


def test_a_node_port_is_not_served_on_other_addresses(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], node_port=PORT)
    unserved = "192.168.60.1" if scene.family == 4 else "fd60::1"
    node.node_address(unserved, nodeports=False)
    for address in (unserved, scene.router, scene.vip):
        packet = scene.opening(scene.stranger, scene.at(address, PORT))
        assert same(node.forward(packet), packet)


def test_a_node_port_of_one_family_is_not_served_in_the_other(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], node_port=PORT)
    other = ("fd50::11", "fd50::9") if scene.family == 4 else ("192.168.50.11", "192.168.50.9")
    us, client = (f"[{one}]" if ":" in one else one for one in other)
    packet = scene.opening(f"{client}:40000", f"{us}:{PORT}")
    assert same(node.forward(packet), packet)


def test_an_exact_frontend_goes_before_the_wildcard(node: Node, scene: Scene) -> None:
    """An externalIP may be an address of the node."""
    exact = scene.node_place(PORT)
    scene.service(node, [scene.backend], "wildcard", node_port=PORT)
    scene.service(node, [scene.other_backend], "exact", frontends=[exact])
    out = node.forward(scene.opening(scene.stranger, exact))
    assert same(out, scene.opening(scene.stranger, scene.other_backend))


def test_an_external_ip_need_not_be_an_address_of_the_node(node: Node, scene: Scene) -> None:
    external = scene.at(scene.router, 80)
    scene.service(node, [scene.backend], frontends=[external])
    out = node.forward(scene.opening(scene.stranger, external))
    assert same(out, scene.opening(scene.stranger, scene.backend))
    back = node.forward(scene.answer(scene.backend, scene.stranger))
    assert same(back, scene.answer(external, scene.stranger))


@pytest.mark.parametrize("who", ["pod", "node", "other"])
def test_each_class_of_clients_has_its_own_backends(node: Node, scene: Scene, who: str) -> None:
    backends = [scene.at(scene.backend, 9000 + number) for number in range(3)]
    pod, us, other = (Policy(number, 1, False, False) for number in range(3))
    scene.service(node, backends, frontends=[scene.vip], policies=Policies(pod, us, other))
    client, wanted = {
        "pod": (scene.client, backends[0]),
        "node": (scene.node_place(40000), backends[1]),
        "other": (scene.stranger, backends[2]),
    }[who]
    assert same(node.forward(scene.opening(client, scene.vip)), scene.opening(client, wanted))


@pytest.mark.parametrize("who", ["pod", "node", "other"])
def test_each_class_of_clients_is_masqueraded_or_not(node: Node, scene: Scene, who: str) -> None:
    pod, us, other = (Policy(0, 1, name == who, False) for name in CLIENTS)
    policies = Policies(pod, us, other)
    scene.service(node, [scene.backend], frontends=[scene.vip], policies=policies)
    clients = {"pod": scene.client, "node": scene.node_place(40000), "other": scene.stranger}
    for name, client in clients.items():
        port = node.forward(scene.opening(client, scene.vip)).payload.sport
        assert (10000 <= port < 30000) == (name == who)


def test_with_nobody_home_here_a_first_packet_is_dropped_and_counted(
    node: Node, scene: Scene
) -> None:
    nobody = Policy(0, 0, False, False)
    policies = Policies(nobody, nobody, nobody)
    scene.service(node, [], frontends=[scene.vip], policies=policies)
    assert node.drops("ingress", scene.opening(scene.client, scene.vip))
    assert node.counter("rejected__no_endpoints") == 0
    assert node.counter("dropped__no_endpoints") == 1
    assert node.states() == (0, 0)


def test_nobody_home_for_one_class_is_not_nobody_home_for_another(node: Node, scene: Scene) -> None:
    """externalTrafficPolicy: Local without a local endpoint."""
    home, nobody = Policy(0, 1, False, False), Policy(0, 0, False, False)
    policies = Policies(home, home, nobody)
    scene.service(node, [scene.backend], frontends=[scene.vip], policies=policies)
    assert node.drops("ingress", scene.opening(scene.stranger, scene.vip))
    out = node.forward(scene.opening(scene.client, scene.vip))
    assert same(out, scene.opening(scene.client, scene.backend))


def test_a_generation_whose_backends_are_missing_misdirects_nobody(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.other_backend], "other", frontends=[scene.other_vip])
    scene.service(node, [scene.backend])
    backends = node.pinned.map("backends")
    web = max(key for key, _ in backends.items())
    row = backends.lookup(web)
    assert row is not None
    backends.delete(web)
    assert node.drops("ingress", scene.opening(scene.client, scene.vip))
    assert node.counter("dropped__no_endpoints") == 1
    assert node.count("new_connections") == 0
    backends.update(web, row)
    out = node.forward(scene.opening(scene.client, scene.vip))
    assert same(out, scene.opening(scene.client, scene.backend))


def test_a_removed_service_is_nobodys_frontend(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    scene.service(node, [scene.backend], frontends=[scene.other_vip])
    packet = scene.opening(scene.client, scene.vip)
    assert same(node.forward(packet), packet)
