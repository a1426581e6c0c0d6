"""A backend that is its own client: masqueraded where that is asked for, and nowhere else."""

from __future__ import annotations

import pytest

from bpfsvc.address import pack
from bpfsvc.rows import PROTOCOLS, Backend, Frontend, Policies, Policy, PortRows, ServicePort
from tests.packets.node import Node, same
from tests.packets.scene import Scene, bare

CONNECTIONS = 24


def test_without_the_flag_it_meets_itself_under_its_own_address(node: Node, scene: Scene) -> None:
    """As kube-proxy has it for endpoints that no node claims."""
    itself = scene.at(scene.client, 8080)
    scene.service(node, [itself], hairpin=False)
    out = node.forward(scene.opening(scene.client, scene.vip))
    assert same(out, scene.opening(scene.client, itself))


@pytest.mark.parametrize("client", ["pod", "stranger"])
def test_another_client_of_such_a_backend_keeps_its_address(
    node: Node, scene: Scene, client: str
) -> None:
    source = {"pod": scene.client, "stranger": scene.stranger}[client]
    scene.service(node, [scene.backend], hairpin=True)
    assert scene.connect(node, source, scene.vip, scene.backend) == source


def test_only_the_connection_that_meets_itself_is_masqueraded(node: Node, scene: Scene) -> None:
    itself = scene.at(scene.client, 8080)
    scene.service(node, [itself, scene.backend], hairpin=True)
    met = set()
    for number in range(CONNECTIONS):
        source = scene.at(scene.client, 41000 + number)
        out = node.forward(scene.opening(source, scene.vip))
        met.add((out.dst, out.src))
    assert met == {
        (bare(scene.client), scene.us),
        (bare(scene.backend), bare(scene.client)),
    }


def test_each_backend_has_a_flag_of_its_own(node: Node, scene: Scene) -> None:
    number = PROTOCOLS[scene.protocol]
    address = pack(bare(scene.client))
    backends = (Backend(address, 8080, True), Backend(address, 8081, False))
    policy = Policy(0, 2, False, False)
    frontend = Frontend(pack(bare(scene.vip)), 80, number)
    port = ServicePort("default", "web", "", number, scene.family)
    node.program({port: PortRows(80, backends, {frontend: Policies(policy, policy, policy)})})
    met = set()
    for number in range(CONNECTIONS):
        source = scene.at(scene.client, 41000 + number)
        out = node.forward(scene.opening(source, scene.vip))
        met.add((out.payload.dport, out.src))
    assert met == {(8080, scene.us), (8081, bare(scene.client))}


def test_a_policy_that_masquerades_needs_no_flag(node: Node, scene: Scene) -> None:
    everyone = Policy(0, 1, True, False)
    itself = scene.at(scene.client, 8080)
    policies = Policies(everyone, everyone, everyone)
    scene.service(node, [itself], frontends=[scene.vip], policies=policies)
    out = node.forward(scene.opening(scene.client, scene.vip))
    assert out.src == scene.us
