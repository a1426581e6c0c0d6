"""What an agent makes of its Node object, of ServiceCIDRs and of its flags, in a running kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.lab.dial import ask, tally
from bpfsvc.lab.node import Node
from bpfsvc.lab.objects import Object
from bpfsvc.lab.patience import wait
from tests.lab.scene import LOCAL, ONE, WEB, Scene, built, objects

SECOND = "192.168.77.1"
"""A further address of the node."""


def node_object(node: Node, *, addresses: bool = True, cidrs: bool = True) -> Object:
    """Write the Node object as the kubelet and the controllers do."""
    listed = [
        {"type": "InternalIP", "address": str(one)} for one in node.addresses.values() if addresses
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name},
        "spec": {"podCIDRs": [str(one) for one in node.pod_cidrs.values() if cidrs]},
        "status": {"addresses": listed},
    }


def service_cidr(*cidrs: str) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": list(cidrs)},
    }


@pytest.fixture(scope="module")
def bare() -> Iterator[Scene]:
    """A bridged lab with Services, a node with two addresses, and no agents yet."""
    with built(layout="bridge") as scene:
        lab, cluster = scene
        cluster.put("services", *objects(WEB, lab.pods), *objects(ONE[2], lab.pods[2:3]))
        scene.node.run(["ip", "address", "add", f"{SECOND}/32", "dev", "lo"])
        for network in (f"{SECOND}/32", "10.96.0.0/16", "fd96::/64"):
            lab.client.route(network, via=lab.nodes[0])
        yield scene


@pytest.fixture
def scene(bare: Scene) -> Iterator[Scene]:
    """The same, with its agent ended after the test."""
    bare.cluster.put("node", node_object(bare.node))
    yield bare
    if bare.node.name in bare.cluster.agents:
        bare.cluster.stop(bare.node)


def dumped(scene: Scene, name: str) -> list[dict[str, Any]]:
    found = scene.cluster.command(scene.node, "maps", "dump", name, "-o", "json")
    records: list[dict[str, Any]] = json.loads(found.stdout)[name]
    return records


def accepted(scene: Scene) -> set[str]:
    return {one["address"] for one in dumped(scene, "node_addresses") if one["nodeports"]}


def start(scene: Scene, *options: str) -> None:
    scene.cluster.start(scene.node, options=options)


def apply(scene: Scene, name: str = "nothing", *things: Object) -> None:
    """Write a manifest and wait until the one agent has it in its kernel."""
    scene.cluster.put(name, *things)
    scene.cluster.settle([scene.node])


def test_node_ports_answer_on_the_nodes_own_addresses_alone(scene: Scene) -> None:
    start(scene)
    own = {str(one) for one in scene.node.addresses.values()}
    assert accepted(scene) == own
    assert ask(scene.client, scene.node.address(), ONE[2].node_port).pod == scene.lab.pods[2].name
    assert tally(scene.client, SECOND, ONE[2].node_port, count=1) == {"refused": 1}
    assert tally(scene.node, "127.0.0.1", ONE[2].node_port, count=1) == {"refused": 1}


def test_node_ports_answer_on_all_addresses_when_told_so(scene: Scene) -> None:
    start(scene, "--nodeport-addresses", "0.0.0.0/0,::/0")
    for where in (scene.node.address(), SECOND):
        assert ask(scene.client, where, ONE[2].node_port).pod == scene.lab.pods[2].name
    for where in ("127.0.0.1", "127.0.0.77"):
        assert ask(scene.node, where, ONE[2].node_port).pod == scene.lab.pods[2].name


def test_loopback_can_be_left_out(scene: Scene) -> None:
    start(scene, "--nodeport-addresses", "0.0.0.0/0", "--no-localhost-nodeports")
    assert tally(scene.node, "127.0.0.1", ONE[2].node_port, count=1) == {"refused": 1}


def test_the_nodes_address_may_become_known_later(scene: Scene) -> None:
    scene.cluster.put("node", node_object(scene.node, addresses=False))
    start(scene)
    assert SECOND in accepted(scene)
    scene.cluster.put("node", node_object(scene.node))
    wait(lambda: SECOND not in accepted(scene), "NodePorts left the second address")


def test_a_new_address_is_followed(scene: Scene) -> None:
    start(scene, "--nodeport-addresses", "192.168.0.0/16")
    scene.node.run(["ip", "address", "add", "192.168.78.1/32", "dev", "lo"])
    wait(lambda: "192.168.78.1" in accepted(scene), "the new address accepts NodePorts")
    scene.node.run(["ip", "address", "del", "192.168.78.1/32", "dev", "lo"])
    wait(lambda: "192.168.78.1" not in accepted(scene), "the address has gone")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--detect-local-mode", "NodeCIDR"], id="the node's range"),
        pytest.param(
            ["--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"],
            id="a bridge",
        ),
        pytest.param(
            ["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "cni"],
            id="names of interfaces",
        ),
    ],
)
@pytest.mark.parametrize("family", [4, 6])
def test_pods_of_this_node_keep_their_address(
    scene: Scene, options: list[str], family: int
) -> None:
    """Another client of a cluster IP is masqueraded."""
    start(scene, *options)
    pod = scene.pod
    assert ask(pod, ONE[2].vip(family), 80).peer.startswith(
        (f"{pod.addresses[family]}:", f"[{pod.addresses[family]}]:")
    )
    seen = ask(scene.client, ONE[2].vip(family), 80).peer
    assert seen.rpartition(":")[0].strip("[]") == scene.node.address(family)


def test_pods_become_known_with_the_node_object(scene: Scene) -> None:
    scene.cluster.put("node", node_object(scene.node, cidrs=False))
    start(scene, "--detect-local-mode", "NodeCIDR")

    def pod_range() -> str:
        settings = {one["setting"]: one["value"] for one in dumped(scene, "settings")}
        return str(settings["pod_range_IPv4"])

    assert pod_range() == ""
    scene.cluster.put("node", node_object(scene.node))
    wait(lambda: pod_range() == str(scene.node.pod_cidrs[4]), "the range of pods is known")
    apply(scene)
    seen = ask(scene.client, ONE[2].vip(4), 80).peer
    assert seen.startswith(f"{scene.node.address()}:"), "strangers are masqueraded"


def test_unallocated_addresses_of_service_networks_are_dropped(scene: Scene) -> None:
    start(scene)
    apply(scene, "cidr", service_cidr("10.96.0.0/16", "fd96::/64"))
    networks = [one["network"] for one in dumped(scene, "service_networks")]
    assert networks == ["10.96.0.0/16", "fd96::/64"]
    assert tally(scene.pod, "10.96.77.77", 80, count=1, timeout=0.3) == {"timeout": 1}
    assert ask(scene.pod, ONE[2].vip(4), 80).pod == scene.lab.pods[2].name
    scene.cluster.drop("cidr")
    scene.cluster.settle([scene.node])
    assert dumped(scene, "service_networks") == []


def test_load_balancers_are_told_of_local_endpoints(scene: Scene) -> None:
    """The health check follows the policy, and answers on the addresses of NodePorts."""
    start(scene)
    lab, cluster = scene.lab, scene.cluster

    def balanced(policy: str) -> list[Object]:
        return objects(LOCAL, lab.pods[:1], externalTrafficPolicy=policy, healthCheckNodePort=31000)

    def answer() -> str:
        words = ["/usr/bin/python3", "-c", _ASK, scene.node.address(), "31000"]
        return lab.client.run(words).stdout.strip()

    made = balanced("Local")
    made[0]["spec"]["type"] = "LoadBalancer"
    apply(scene, "local", *made)
    wait(lambda: answer() == "200 1", "the health check says one endpoint")
    apply(scene, "local", *balanced("Cluster"))
    wait(lambda: answer() == "closed", "the health check has gone")
    cluster.drop("local")


_ASK = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(f"http://{sys.argv[1]}:{sys.argv[2]}/", timeout=5) as answer:
        print(answer.status, answer.headers["X-Load-Balancing-Endpoint-Weight"])
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("closed")
"""
