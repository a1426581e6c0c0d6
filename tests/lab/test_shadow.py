"""Shadow mode beside rules as kube-proxy writes them, by real sockets.

The objects are what bpfsvc is told; the rules are what the node does. Where both mean the same,
nothing is reported, and where they do not, the difference has the name of the Service and a kind.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from typing import Any, NamedTuple

import pytest

from bpfsvc.devtools.bench.baselines import BaselineService, Mode, write_rules
from bpfsvc.devtools.lab.cluster import LabAgent, LabCluster
from bpfsvc.devtools.lab.dial import ask, tally
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.objects import port, service, service_cidr, slices
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.topology import CLUSTER_CIDRS, Lab

pytestmark = pytest.mark.slow

PODS = IPv4Network(CLUSTER_CIDRS[4])
PORT = 10276
WEB, ECHO, OWN, LOCAL, GHOST = (f"10.96.0.{number}" for number in range(1, 6))


class ShadowTestbed(NamedTuple):
    """A lab with kube-proxy's rules on its first node, and the objects beside it."""

    mode: Mode
    lab: Lab
    cluster: LabCluster
    web: BaselineService

    @property
    def node(self) -> LabNode:
        return self.lab.nodes[0]

    def write_web(self, *pods: int) -> None:
        """Have nftables' rules of the Service ``web`` lead to these pods, as kube-proxy does."""
        addresses = [self.lab.pods[pod].address() for pod in pods]
        targets = ", ".join(f"{number} : {each} . 8080" for number, each in enumerate(addresses))
        chain = f"ip kube-proxy service-{self.web.id}"
        choice = f"ip addr . port to numgen random mod {len(pods)} map {{ {targets} }}"
        if len(pods) == 1:  # without a map since 1.37
            choice = f"to {addresses[0]}:8080"
        rule = f"add rule {chain} meta l4proto tcp dnat {choice}"
        self.node.run(["nft", "-f", "-"], input=f"flush chain {chain}\n{rule}\n")

    def put_objects(self, *, web: tuple[int, ...] = (1, 2)) -> None:
        """Tell bpfsvc of the Services; ``web``: numbers of the pods that are its endpoints."""
        pods, http, echo = self.lab.pods, (port(8080, "http"),), (port(8080, "", "UDP"),)
        self.cluster.put(
            "services",
            service_cidr("10.96.0.0/12"),
            service("web", [WEB], [port(80, "http", nodePort=30080)], type="NodePort"),
            *slices("web", [pods[index] for index in web], http),
            service("echo", [ECHO], [port(7, "", "UDP", nodePort=30007)], type="NodePort"),
            *slices("echo", [pods[1], pods[2]], echo),
            service("own", [OWN], [port(80, "http")]),
            *slices("own", [pods[0]], http),
        )

    @contextmanager
    def shadow(self, *options: str) -> Iterator[LabAgent]:
        """Run shadow mode until it compares, and end it."""
        words = ["--shadow", "--shadow-tolerance=1s", f"--proxy-mode={self.layout}", *options]
        agent = self.cluster.launch(self.node, options=words)
        agent.expect("shadow mode: comparing", 20)
        try:
            yield agent
        finally:
            if agent.process.poll() is None:
                agent.end()

    @property
    def layout(self) -> str:
        return self.mode.partition("-")[0]

    def report(self) -> dict[str, Any]:
        """Return the page of shadow mode."""
        status, body = http_request(self.node, "127.0.0.1", PORT, "/bpfsvc/shadow")
        assert status == 200
        page: dict[str, Any] = json.loads(body)
        return page

    def await_compared(self, number: int) -> dict[str, Any]:
        """Wait until so many connections were compared; return the page."""
        wait(lambda: self.report()["connections"] >= number, f"{number} connections compared")
        return self.report()

    def kinds(self, number: int) -> set[tuple[str, str]]:
        """Return Service and kind of all differences among so many connections."""
        services = self.await_compared(number)["services"]
        return {(count["name"], count["kind"]) for count in services}


by_nftables = pytest.mark.parametrize("testbed", ["nftables"], indirect=True, scope="module")
by_both_modes = pytest.mark.parametrize(
    "testbed", ["nftables", "iptables"], indirect=True, scope="module"
)


def rule(name: str, address: str, number: int, *pods: Any, **more: Any) -> BaselineService:
    backends = tuple((pod.address(), 8080) for pod in pods)
    return BaselineService(f"default/{name}", address, number, backends=backends, **more)


@pytest.fixture(scope="module")
def testbed(request: pytest.FixtureRequest) -> Iterator[ShadowTestbed]:
    """Rules and objects that mean the same; a test that changes one of them changes it back."""
    with Lab("routed", families=(4,)) as lab:
        lab.serve()
        pods = lab.pods
        web = rule("web:http", WEB, 80, pods[1], pods[2], node_port=30080)
        services = [
            web,
            rule("echo", ECHO, 7, pods[1], pods[2], protocol="udp", node_port=30007),
            rule("own:http", OWN, 80, pods[0]),
            rule("ghost:http", GHOST, 80, pods[2], node_port=30099),
        ]
        with LabCluster(lab, nodes=lab.nodes[:1]) as cluster:
            write_rules(lab.nodes[0], request.param, services, PODS)
            made = ShadowTestbed(request.param, lab, cluster, web)
            made.put_objects()
            lab.client.route("10.96.0.0/16", via=lab.nodes[0])
            yield made


def connect_everywhere(testbed: ShadowTestbed) -> int:
    """Connect from pods, the node and outside, to all Services; return the number."""
    node = testbed.node
    clients: list[Namespace] = [testbed.lab.pods[0], node, testbed.lab.client]
    for client in clients:
        for _ in range(4):
            ask(client, WEB, 80)
            ask(client, ECHO, 7, "udp")
            ask(client, node.address(), 30080)
            ask(client, node.address(), 30007, "udp")
        ask(client, OWN, 80)
    if testbed.layout == "iptables":
        assert ask(node, "127.0.0.1", 30080)
        return 3 * 17 + 1
    return 3 * 17


@pytest.mark.slow
@by_both_modes
def test_right_rules_do_not_differ_and_nothing_on_the_node_is_changed(
    testbed: ShadowTestbed,
) -> None:
    """Beside kube-proxy's servers, at ports that are in use."""
    node = testbed.node
    before = node_state(node)
    ports = [node.socket(socket.AF_INET), node.socket(socket.AF_INET)]
    try:
        for listener, number in zip(ports, (10256, 10249), strict=True):
            listener.bind(("0.0.0.0", number))
            listener.listen()
        with testbed.shadow() as agent:
            number = connect_everywhere(testbed)
            report = testbed.await_compared(number)
            assert (report["connections"], report["services"]) == (number, [])
            assert report["losses"] == 0
            shown = testbed.cluster.command(node, "status")
            assert (shown.returncode, shown.stderr) == (0, "")
            assert shown.stdout.startswith(f"shadow mode, no difference in {number} connections")
            assert node_state(node) == before
            assert agent.end() == 0
        assert f"{number} connections compared, no difference" in agent.log
    finally:
        for listener in ports:
            listener.close()


def node_state(node: LabNode) -> tuple[str, ...]:
    """Return what an agent changes: programs attached, pins, sysctls."""
    return (
        node.run(["tc", "qdisc", "show"]).stdout,
        node.run(["sysctl", "net.ipv4.ip_local_reserved_ports"]).stdout,
        node.run(["sysctl", "-a", "--pattern", "net.netfilter.nf_conntrack_(max|tcp|udp)"]).stdout,
        str(node.pin_root.exists()),
    )


@by_nftables
def test_a_backend_that_is_no_endpoint_is_a_difference_of_its_service(
    testbed: ShadowTestbed,
) -> None:
    testbed.put_objects(web=(1,))
    try:
        with testbed.shadow() as agent:
            assert set(tally(testbed.lab.pods[0], WEB, 80, count=20)) == {
                pod.name for pod in testbed.lab.pods[1:3]
            }
            assert testbed.kinds(20) == {("web", "not_eligible")}
            shown = testbed.cluster.command(testbed.node, "status")
            assert shown.returncode == 1
            assert "default/web  not_eligible" in shown.stdout
            _, metrics = http_request(testbed.node, "127.0.0.1", PORT, "/metrics")
            line = 'bpfsvc_shadow_differences_total{kind="not_eligible",namespace="default"'
            assert line in metrics.decode()
            assert "bpfsvc_shadow_flows_total 20.0" in metrics.decode()
            other = testbed.lab.pods[2].address()
            agent.expect(
                f"default/web differs (not_eligible): TCP {testbed.lab.pods[0].address()}:"
            )
            assert f"-> {WEB}:80, to {other}:8080" in agent.log
            assert agent.log.count("default/web differs") == 1
            assert agent.end() == 1
    finally:
        testbed.put_objects()


@by_nftables
def test_a_service_that_only_one_of_the_two_has_is_a_difference(testbed: ShadowTestbed) -> None:
    lonely = service("lonely", ["10.96.0.9"], [port(80, "http", nodePort=30098)], type="NodePort")
    testbed.cluster.put(
        "lonely", lonely, *slices("lonely", testbed.lab.pods[:1], [port(8080, "http")])
    )
    try:
        with testbed.shadow():
            node = testbed.node
            assert ask(testbed.lab.client, node.address(), 30099)
            assert tally(testbed.lab.client, node.address(), 30098, count=1) == {"refused": 1}
            assert ask(testbed.lab.pods[0], GHOST, 80)
            assert testbed.kinds(3) == {("", "unknown_frontend"), ("lonely", "not_translated")}
    finally:
        testbed.cluster.drop("lonely")


@pytest.mark.slow
@by_nftables
def test_a_change_that_only_one_of_the_two_has_seen_is_none(testbed: ShadowTestbed) -> None:
    """The rules first, then the objects; each time the other is behind, for less than tolerated."""
    pods = testbed.lab.pods
    with testbed.shadow(f"--shadow-tolerance={stretched(4):g}s") as agent:
        testbed.write_web(3)
        assert set(tally(pods[0], WEB, 80, count=10)) == {pods[3].name}
        testbed.put_objects(web=(3,))
        assert set(tally(pods[0], WEB, 80, count=10)) == {pods[3].name}
        testbed.await_compared(20)  # so the objects have been read, and not only the next ones
        testbed.put_objects()
        assert set(tally(pods[0], WEB, 80, count=10)) == {pods[3].name}
        testbed.write_web(1, 2)
        assert testbed.await_compared(30)["services"] == []
        assert agent.end() == 0


@pytest.mark.slow
@by_nftables
def test_for_ends_by_itself_and_its_exit_status_says_whether_they_differ(
    testbed: ShadowTestbed,
) -> None:
    with testbed.shadow("--for=1s") as agent:
        while agent.process.poll() is None:
            ask(testbed.lab.pods[0], OWN, 80)
        assert agent.process.returncode == 0
        assert "no difference" in agent.log
    with testbed.shadow("--for=1s") as agent:
        while agent.process.poll() is None:
            ask(testbed.lab.pods[0], GHOST, 80)
        assert agent.process.returncode == 1
        assert "(unknown Service) unknown_frontend: " in agent.log


@by_nftables
def test_bpfsvc_is_not_compared_with_itself(testbed: ShadowTestbed) -> None:
    """Where its programs serve, netfilter sees nothing of kube-proxy's."""
    node = testbed.lab.nodes[1]
    with LabCluster(testbed.lab, nodes=[node]) as cluster:
        cluster.put("services", service("web", [WEB], [port(80, "http")]))
        cluster.start()
        refused = cluster.command(node, "run", "--shadow", *cluster.flags(node))
        assert refused.returncode == 1
        assert "Error: bpfsvc already serves Services on this node" in refused.stderr
