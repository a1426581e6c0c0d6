"""Who counts as a pod of this node: by the interface its packets come by, or by its address."""

from __future__ import annotations

import struct

import pytest

from bpfsvc.rows import CLIENTS, Policies, Policy
from tests.packets.node import Node
from tests.packets.scene import Scene

BY_INTERFACE = {"detect_interfaces": 1, "detect_pods_v4": 0, "detect_pods_v6": 0}
BY_NOTHING = {"detect_pods_v4": 0, "detect_pods_v6": 0}


@pytest.fixture
def clients(scene: Scene) -> dict[str, str]:
    """Clients by the class that they are of in the pod ranges of the tests."""
    return {"pod": scene.client, "node": scene.node_place(40000), "other": scene.stranger}


@pytest.fixture
def web(node: Node, scene: Scene) -> Node:
    """A node with a service whose backends tell who they take a client for: see :func:`taken`."""
    backends = [scene.at(scene.backend, 9000 + number) for number in range(3)]
    pod, us, other = (Policy(number, 1, False, False) for number in range(3))
    scene.service(node, backends, frontends=[scene.vip], policies=Policies(pod, us, other))
    return node


def taken(node: Node, scene: Scene, client: str) -> str:
    """Give the class that a client is taken for."""
    out = node.ingress(scene.opening(client, scene.vip))
    return CLIENTS[out.payload.dport - 9000]


def interface(node: Node, *, pods: bool) -> None:
    node.masquerade_address("192.168.50.11", "fd50::11", pods=pods)


def test_whoever_comes_by_a_marked_interface_is_a_pod(
    web: Node, scene: Scene, clients: dict[str, str]
) -> None:
    web.settings(**BY_INTERFACE)
    interface(web, pods=True)
    assert {taken(web, scene, client) for client in clients.values()} == {"pod"}


def test_whoever_comes_by_another_interface_is_none(
    web: Node, scene: Scene, clients: dict[str, str]
) -> None:
    """Though its address be a pod's: it may be one of another node."""
    web.settings(**BY_INTERFACE)
    interface(web, pods=False)
    found = {name: taken(web, scene, client) for name, client in clients.items()}
    assert found == {"pod": "other", "node": "node", "other": "other"}


def test_whoever_comes_by_an_unknown_interface_is_none(
    web: Node, scene: Scene, clients: dict[str, str]
) -> None:
    web.settings(**BY_INTERFACE)
    web.pinned.map("interfaces").delete(struct.pack("=I", web.interface))
    found = {name: taken(web, scene, client) for name, client in clients.items()}
    assert found == {"pod": "other", "node": "node", "other": "other"}


@pytest.mark.parametrize("pods", [False, True], ids=["unmarked", "marked"])
def test_by_address_the_interface_does_not_matter(
    web: Node, scene: Scene, clients: dict[str, str], pods: bool
) -> None:
    interface(web, pods=pods)
    assert all(taken(web, scene, client) == name for name, client in clients.items())


def test_without_a_detector_nobody_is_a_pod(
    web: Node, scene: Scene, clients: dict[str, str]
) -> None:
    web.settings(**BY_NOTHING)
    interface(web, pods=True)
    found = {name: taken(web, scene, client) for name, client in clients.items()}
    assert found == {"pod": "other", "node": "node", "other": "other"}


def test_a_detector_of_one_family_detects_nothing_in_the_other(web: Node, scene: Scene) -> None:
    for family in (4, 6):
        web.settings(**{f"detect_pods_v{10 - family}": 0})
        client = scene.at(scene.client, 41000 + family)
        assert taken(web, scene, client) == ("pod" if family == scene.family else "other")


def test_a_pod_range_has_a_first_and_a_last_address(web: Node, scene: Scene) -> None:
    inside = {4: ("10.244.0.0", "10.244.255.255"), 6: ("fd44::", "fd44:0:0:ffff::1")}[scene.family]
    outside = {4: ("10.243.255.255", "10.245.0.0"), 6: ("fd43::1", "fd44:0:1::")}[scene.family]
    for address in inside:
        assert taken(web, scene, scene.at(address, 40000)) == "pod"
    for address in outside:
        assert taken(web, scene, scene.at(address, 40000)) == "other"
