"""The effect of the Node object, ServiceCIDRs and flags of an agent, in a running kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.devtools.lab import objects as kubernetes
from bpfsvc.devtools.lab.dial import ask, tally
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.objects import Object, service_cidr
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import (
    FAMILIES,
    LOCAL,
    NO_PORT,
    ONE,
    TRANSPORTS,
    WEB,
    Testbed,
    at,
    built_testbed,
    host,
    objects,
)

SECOND = "192.168.77.1"
"""A further address of the node."""


def node_object(node: LabNode, *, addresses: bool = True, cidrs: bool = True) -> Object:
    """Return the Node object as the kubelet and the controllers write it."""
    return kubernetes.node(
        node.name,
        node.addresses.values() if addresses else (),
        pod_cidrs=node.pod_cidrs.values() if cidrs else (),
    )


@pytest.fixture(scope="module")
def lab_testbed() -> Iterator[Testbed]:
    """A bridged lab with Services, a node with two addresses, and no agents yet."""
    with built_testbed(layout="bridge") as testbed:
        lab, cluster = testbed
        cluster.put("services", *objects(WEB, lab.pods), *objects(ONE[2], lab.pods[2:3]))
        testbed.node.run(["ip", "address", "add", f"{SECOND}/32", "dev", "lo"])
        for network in (f"{SECOND}/32", "10.96.0.0/16", "fd96::/64"):
            lab.client.route(network, via=lab.nodes[0])
        yield testbed


@pytest.fixture
def testbed(lab_testbed: Testbed) -> Iterator[Testbed]:
    """The same testbed; its agent is ended after the test."""
    lab_testbed.cluster.put("node", node_object(lab_testbed.node))
    yield lab_testbed
    if lab_testbed.node.name in lab_testbed.cluster.agents:
        lab_testbed.cluster.stop(lab_testbed.node)


def dumped(testbed: Testbed, name: str) -> list[dict[str, Any]]:
    done = testbed.cluster.command(testbed.node, "maps", "dump", name, "-o", "json")
    records: list[dict[str, Any]] = json.loads(done.stdout)[name]
    return records


def accepted(testbed: Testbed) -> set[str]:
    return {one["address"] for one in dumped(testbed, "node_addresses") if one["nodeports"]}


def start(testbed: Testbed, *options: str) -> None:
    testbed.cluster.start(testbed.node, options=options)


def apply(testbed: Testbed, name: str = "nothing", *things: Object) -> None:
    """Write a manifest and wait until the one agent has it in its kernel."""
    testbed.cluster.put(name, *things)
    testbed.cluster.settle([testbed.node])


def test_node_ports_answer_only_on_the_nodes_own_addresses(testbed: Testbed) -> None:
    start(testbed)
    own = {str(address) for address in testbed.node.addresses.values()}
    assert accepted(testbed) == own
    assert (
        ask(testbed.client, testbed.node.address(), ONE[2].node_port).pod
        == testbed.lab.pods[2].name
    )
    assert tally(testbed.client, SECOND, ONE[2].node_port, count=1) == {"refused": 1}
    assert tally(testbed.node, "127.0.0.1", ONE[2].node_port, count=1) == {"refused": 1}


def test_node_ports_answer_on_all_addresses_when_configured(testbed: Testbed) -> None:
    start(testbed, "--nodeport-addresses", "0.0.0.0/0,::/0")
    for where in (testbed.node.address(), SECOND):
        assert ask(testbed.client, where, ONE[2].node_port).pod == testbed.lab.pods[2].name
    for where in ("127.0.0.1", "127.0.0.77"):
        assert ask(testbed.node, where, ONE[2].node_port).pod == testbed.lab.pods[2].name


def test_loopback_can_be_excluded(testbed: Testbed) -> None:
    start(testbed, "--nodeport-addresses", "0.0.0.0/0", "--no-localhost-nodeports")
    assert tally(testbed.node, "127.0.0.1", ONE[2].node_port, count=1) == {"refused": 1}


def test_node_ports_answer_on_loopback_when_the_list_names_it(testbed: Testbed) -> None:
    """By both families, also to a socket that is bound to loopback; for the node alone."""
    start(testbed, "--nodeport-addresses", "primary,localhost")
    own = {str(address) for address in testbed.node.addresses.values()}
    assert accepted(testbed) == own | {"127.0.0.1", "::1"}
    number, pod = ONE[2].node_port, testbed.lab.pods[2].name
    for loopback, unspecified in (("127.0.0.1", "0.0.0.0"), ("::1", "::")):
        for transport in TRANSPORTS:
            for where in (loopback, unspecified):
                answer = ask(testbed.node, where, number, transport)
                assert (answer.pod, answer.remote) == (pod, at(loopback, number))
            by_sendto = ask(testbed.node, loopback, number, transport, connected=False)
            assert (by_sendto.pod, by_sendto.remote) == (pod, at(loopback, number))
            bound = ask(
                testbed.node, loopback, number, transport, source=(loopback, 0), options=[NO_PORT]
            )
            assert bound.pod == pod
            assert tally(testbed.pod, loopback, number, transport, count=1) == {"refused": 1}
    assert tally(testbed.client, SECOND, number, count=1) == {"refused": 1}


def test_the_nodes_address_may_become_known_later(testbed: Testbed) -> None:
    testbed.cluster.put("node", node_object(testbed.node, addresses=False))
    start(testbed)
    assert SECOND in accepted(testbed)
    testbed.cluster.put("node", node_object(testbed.node))
    wait(lambda: SECOND not in accepted(testbed), "NodePorts left the second address")


def test_a_new_address_of_the_node_accepts_node_ports(testbed: Testbed) -> None:
    start(testbed, "--nodeport-addresses", "192.168.0.0/16")
    testbed.node.run(["ip", "address", "add", "192.168.78.1/32", "dev", "lo"])
    wait(lambda: "192.168.78.1" in accepted(testbed), "the new address accepts NodePorts")
    testbed.node.run(["ip", "address", "del", "192.168.78.1/32", "dev", "lo"])
    wait(lambda: "192.168.78.1" not in accepted(testbed), "the address has gone")


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
def test_pods_of_this_node_keep_their_address(testbed: Testbed, options: list[str]) -> None:
    """Another client of a cluster IP is masqueraded."""
    start(testbed, *options)
    for family in FAMILIES:
        seen = host(ask(testbed.pod, ONE[2].vip(family), 80).peer)
        assert seen == testbed.pod.address(family)
        seen = host(ask(testbed.client, ONE[2].vip(family), 80).peer)
        assert seen == testbed.node.address(family)


def test_pods_become_known_with_the_node_object(testbed: Testbed) -> None:
    testbed.cluster.put("node", node_object(testbed.node, cidrs=False))
    start(testbed, "--detect-local-mode", "NodeCIDR")

    def pod_range() -> str:
        settings = {one["setting"]: one["value"] for one in dumped(testbed, "settings")}
        return str(settings["pod_range_IPv4"])

    assert pod_range() == ""
    testbed.cluster.put("node", node_object(testbed.node))
    wait(lambda: pod_range() == str(testbed.node.pod_cidrs[4]), "the range of pods is known")
    apply(testbed)
    seen = ask(testbed.client, ONE[2].vip(4), 80).peer
    assert seen.startswith(f"{testbed.node.address()}:"), "external clients are masqueraded"


def test_unallocated_addresses_of_service_networks_are_dropped(testbed: Testbed) -> None:
    start(testbed)
    apply(testbed, "cidr", service_cidr("10.96.0.0/16", "fd96::/64"))
    networks = [one["network"] for one in dumped(testbed, "service_networks")]
    assert networks == ["10.96.0.0/16", "fd96::/64"]
    assert tally(testbed.pod, "10.96.77.77", 80, count=1, timeout=0.3) == {"timeout": 1}
    assert ask(testbed.pod, ONE[2].vip(4), 80).pod == testbed.lab.pods[2].name
    testbed.cluster.drop("cidr")
    testbed.cluster.settle([testbed.node])
    assert dumped(testbed, "service_networks") == []


def test_health_checks_report_local_endpoints_to_load_balancers(testbed: Testbed) -> None:
    """The health check follows the policy, and answers on the addresses of NodePorts."""
    start(testbed)
    lab, cluster = testbed.lab, testbed.cluster

    def balanced(policy: str) -> list[Object]:
        return objects(LOCAL, lab.pods[:1], externalTrafficPolicy=policy, healthCheckNodePort=31000)

    def answer() -> str:
        words = ["/usr/bin/python3", "-c", _REQUEST, testbed.node.address(), "31000"]
        return lab.client.run(words).stdout.strip()

    made = balanced("Local")
    made[0]["spec"]["type"] = "LoadBalancer"
    apply(testbed, "local", *made)
    wait(lambda: answer() == "200 1", "the health check says one endpoint")
    apply(testbed, "local", *balanced("Cluster"))
    wait(lambda: answer() == "closed", "the health check has gone")
    cluster.drop("local")


_REQUEST = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(f"http://{sys.argv[1]}:{sys.argv[2]}/", timeout=5) as answer:
        print(answer.status, answer.headers["X-Load-Balancing-Endpoint-Weight"])
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("closed")
"""
