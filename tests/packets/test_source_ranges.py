"""Frontends that only some clients may use."""

from __future__ import annotations

from bpfsvc.address import pack
from bpfsvc.rows import (
    PROTOCOLS,
    Backend,
    Frontend,
    Network,
    Policies,
    Policy,
    PortRows,
    ServicePort,
)
from tests.packets.node import Node, same
from tests.packets.refusals import refused
from tests.packets.scene import Scene, bare

STRANGERS = {4: "192.168.50.0/24", 6: "fd50::/64"}
"""The network of ``scene.stranger`` and of the node itself."""

ELSEWHERE = {4: "172.16.0.0/12", 6: "fd70::/16"}


def allowed(node: Node, scene: Scene, client: str, vip: str = "") -> bool:
    """Whether a client is served; else it must have been dropped, and counted so."""
    before = node.counter("dropped__source_range")
    packet = scene.opening(client, vip or scene.vip)
    if node.drops("ingress", packet):
        assert node.counter("dropped__source_range") == before + 1
        return False
    assert same(node.ingress(packet), scene.opening(client, scene.backend))
    return True


def test_clients_out_of_the_ranges_are_served_and_others_are_dropped(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend], ranges=[STRANGERS[scene.family]])
    assert not allowed(node, scene, scene.client)
    assert not allowed(node, scene, scene.at(scene.router, 40000))
    assert node.states() == (0, 0)
    assert node.counter("dropped__no_endpoints") == 0
    assert allowed(node, scene, scene.stranger)


def test_pods_and_the_node_itself_are_no_exception(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], ranges=[ELSEWHERE[scene.family]])
    assert not allowed(node, scene, scene.client)
    assert not allowed(node, scene, scene.node_place(40000))
    assert allowed(node, scene, scene.at(scene.router, 40000))


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


def test_a_range_has_a_first_and_a_last_address(node: Node, scene: Scene) -> None:
    for network, inside, outside in BOUNDS[scene.family]:
        scene.service(node, [scene.backend], ranges=[network])
        for address in inside:
            assert allowed(node, scene, scene.at(address, 40000)), (network, address)
        for address in outside:
            assert not allowed(node, scene, scene.at(address, 40000)), (network, address)


def test_any_of_several_ranges_suffices_however_long_its_prefix(node: Node, scene: Scene) -> None:
    narrow = {4: "192.168.50.8/30", 6: "fd50::8/126"}[scene.family]
    ranges = [narrow, STRANGERS[scene.family], ELSEWHERE[scene.family]]
    scene.service(node, [scene.backend], ranges=ranges)
    for address in (bare(scene.stranger), scene.us, scene.router):
        assert allowed(node, scene, scene.at(address, 40000)), address
    assert not allowed(node, scene, scene.client)


def test_ranges_of_another_service_do_not_count(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], ranges=[ELSEWHERE[scene.family]])
    scene.service(
        node,
        [scene.backend],
        "other",
        frontends=[scene.other_vip],
        ranges=[STRANGERS[scene.family]],
    )
    assert not allowed(node, scene, scene.stranger)
    assert allowed(node, scene, scene.at(scene.stranger, 40001), scene.other_vip)
    elsewhere = scene.at(scene.router, 40000)
    assert allowed(node, scene, elsewhere)
    assert not allowed(node, scene, elsewhere, scene.other_vip)


def test_only_the_restricted_frontends_of_a_service_ask(node: Node, scene: Scene) -> None:
    """Those of its load balancer."""
    number = PROTOCOLS[scene.protocol]
    policy = Policy(0, 1, False, False)
    everyone = Policies(policy, policy, policy)
    backend = Backend(pack(bare(scene.backend)), 8080)
    cluster_ip = Frontend(pack(bare(scene.vip)), 80, number)
    vip = Frontend(pack(bare(scene.other_vip)), 80, number)
    frontends = {cluster_ip: everyone, vip: everyone._replace(restricted=True)}
    host = Network(pack(bare(scene.stranger)), 128)
    port = ServicePort("default", "web", "", number, scene.family)
    node.program({port: PortRows(80, (backend,), frontends, (host,))})
    assert not allowed(node, scene, scene.client, scene.other_vip)
    assert allowed(node, scene, scene.client)
    assert allowed(node, scene, scene.stranger, scene.other_vip)


def test_without_any_range_nobody_may_come(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], ranges=[])
    for client in (scene.client, scene.stranger, scene.node_place(40000)):
        assert not allowed(node, scene, client)


def test_without_endpoints_the_others_are_dropped_and_only_who_may_come_is_told(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [], ranges=[STRANGERS[scene.family]])
    assert not allowed(node, scene, scene.client)
    assert node.counter("rejected__no_endpoints") == 0
    assert refused(node, scene.opening(scene.stranger, scene.vip))
    assert node.counter("rejected__no_endpoints") == 1


def test_the_source_counts_before_it_is_masqueraded(node: Node, scene: Scene) -> None:
    """The node's own address is in no range here."""
    narrow = {4: "192.168.50.9/32", 6: "fd50::9/128"}[scene.family]
    scene.service(node, [scene.backend], ranges=[narrow], masquerade=True)
    scene.connect(node, scene.stranger, scene.vip, scene.backend)
    assert not allowed(node, scene, scene.node_place(40000))


def test_an_established_connection_stays_when_its_client_may_come_no_more(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend], ranges=[STRANGERS[scene.family]])
    scene.connect(node, scene.stranger, scene.vip, scene.backend)
    scene.service(node, [scene.backend], ranges=[ELSEWHERE[scene.family]])
    out = node.forward(scene.data(scene.stranger, scene.vip))
    assert same(out, scene.data(scene.stranger, scene.backend))
    back = node.forward(scene.data(scene.backend, scene.stranger))
    assert same(back, scene.data(scene.vip, scene.stranger))
    assert not allowed(node, scene, scene.at(scene.stranger, 40001))


def test_ranges_come_and_go_on_a_live_service(node: Node, scene: Scene) -> None:
    for number in range(3):
        client = scene.at(scene.client, 41000 + number)
        scene.service(node, [scene.backend], ranges=[STRANGERS[scene.family]])
        assert not allowed(node, scene, client)
        scene.service(node, [scene.backend])
        assert allowed(node, scene, client)
    assert node.count("source_ranges") == 0
