"""Errors while an agent runs: they are named, other Services keep working, the agent recovers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from bpfsvc.devtools.lab.cluster import COMMAND, LabAgent, LabCluster
from bpfsvc.devtools.lab.dial import OpenConnection, ask, connect, tally
from bpfsvc.devtools.lab.objects import Object, port, service, slices
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.topology import Lab
from tests.lab.testbed import Testbed

pytestmark = pytest.mark.slow

CONNECTIONS = 400
OTHERS = (
    "--max-frontends",
    "16",
    "--max-services",
    "8",
    "--max-backends",
    "16",
    "--max-connections",
    str(CONNECTIONS),
)
SLOTS = ("--max-backend-slots", "12")
"""Map sizes for little more than the Services of the testbed; one map fills up first."""

VIP = "10.96.7.1"
OTHER = "10.96.7.2"
GOOD = "10.96.7.3"
HTTP = [port(8080, "http")]


def simple(
    name: str, address: str, backends: Any, ports: list[Object] | None = None, **spec: Any
) -> list[Object]:
    """Return a ClusterIP Service for TCP and its slices."""
    wanted = ports or [port(80, "http")]
    serving = [port(8080, entry["name"]) for entry in wanted]
    return [service(name, [address], wanted, **spec), *slices(name, backends, serving)]


def absent_endpoints(count: int, first: int = 1) -> list[Any]:
    """Return endpoints that do not exist, to fill maps with."""
    node = SimpleNamespace(name="node-9")
    return [
        SimpleNamespace(name=f"absent-{number}", addresses={4: f"10.244.9.{number}"}, node=node)
        for number in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """One node with one Service of one pod, and an agent with small maps."""
    with (
        Lab("routed", nodes=1, families=(4,)) as lab,
        LabCluster(lab, options=getattr(request, "param", OTHERS)) as cluster,
    ):
        lab.serve()
        cluster.put("works", *simple("works", VIP, lab.pods[1:]))
        cluster.start()
        yield Testbed(lab, cluster)


def serves(testbed: Testbed, address: str, number: int = 80) -> bool:
    """True if pods and processes of the node get an answer."""
    name = testbed.lab.pods[1].name
    return all(
        tally(client, address, number, count=5) == {name: 5}
        for client in (testbed.pod, testbed.node)
    )


def _crowd(flag: str, backends: Any) -> list[Object]:
    """Return a Service that is too large for the map size of ``flag``."""
    if flag == "--max-frontends":
        many = [f"80.11.12.{number}" for number in range(1, 21)]
        return simple("crowd", "10.96.7.9", backends, externalIPs=many)
    if flag == "--max-services":
        return simple(
            "crowd", "10.96.7.9", backends, [port(number, f"p{number}") for number in range(81, 91)]
        )
    return simple("crowd", "10.96.7.9", absent_endpoints(20))


FLAGS = [
    (OTHERS, "--max-frontends"),
    (OTHERS, "--max-backends"),
    (OTHERS, "--max-services"),
    (SLOTS, "--max-backend-slots"),
]


@pytest.mark.parametrize(
    ("small", "flag"), FLAGS, indirect=["small"], ids=[flag for _, flag in FLAGS]
)
def test_a_full_map_is_named_and_does_not_stop_others(small: Testbed, flag: str) -> None:
    """The log names map and flag, /healthz returns 503 with the reason; other Services work, change
    and can be added. All recovers once there is room again.
    """
    agent, cluster, pods = small.agent, small.cluster, small.lab.pods
    assert agent.health().status == 200
    said = len(agent.log)
    cluster.put("crowd", *_crowd(flag, pods[1:]))
    wait(lambda: agent.health().status == 503, "the agent is unhealthy")
    assert flag in str(agent.health().body)
    lines = [line for line in agent.log[said:].splitlines() if "ERROR" in line]
    assert lines
    assert all(flag in line and "crowd" in line for line in lines)
    assert "Traceback" not in agent.log
    assert serves(small, VIP)
    cluster.put("new", *simple("new", OTHER, pods[1:]))
    cluster.await_entry(small.node, OTHER, 80)
    assert serves(small, OTHER)
    cluster.drop("crowd")
    wait(lambda: agent.health().status == 200, "the agent is healthy again")
    cluster.drop("new")
    cluster.await_removal(small.node, OTHER, 80)
    assert serves(small, VIP)


@pytest.mark.parametrize("small", [SLOTS], indirect=True, ids=["--max-backend-slots"])
def test_a_service_is_written_when_another_makes_room(small: Testbed) -> None:
    """A Service that did not fit is tried again as soon as another is removed."""
    cluster, agent, pods = small.cluster, small.agent, small.lab.pods
    cluster.put("big", *simple("big", "10.96.7.20", absent_endpoints(7)))
    cluster.await_entry(small.node, "10.96.7.20", 80)
    cluster.put("late", *simple("late", OTHER, [*pods[1:], *absent_endpoints(7, first=20)]))
    wait(lambda: agent.health().status == 503, "the agent is unhealthy")
    cluster.drop("big")
    try:
        wait(lambda: agent.health().status == 200, "the agent is healthy again")
        assert cluster.entry(small.node, OTHER, 80) is not None
    finally:
        cluster.drop("late")
        cluster.await_removal(small.node, OTHER, 80)


def test_a_full_map_of_connections_harms_no_established_connection(small: Testbed) -> None:
    """Existing connections continue; new ones must wait until some end."""
    with ExitStack() as stack:
        held: list[OpenConnection] = []
        with suppress(TimeoutError):
            while len(held) < CONNECTIONS:
                held.append(stack.enter_context(connect(small.pod, VIP, 80)))
                held[-1].who()
        # Two entries per connection; the last one did not fit.
        assert 0 < len(held) <= CONNECTIONS // 2 + 1
        for conversation in held[:-1]:
            conversation.socket.settimeout(stretched(2))
            assert conversation.echo(b"still there?")
        assert serves_node(small)
        shown = small.cluster.command(small.node, "status").stdout
    wait(
        lambda: tally(small.pod, VIP, 80, count=1, timeout=0.2) == {small.lab.pods[1].name: 1},
        "there is room again",
        timeout=20,
    )
    assert "connections full" in shown
    assert "--max-connections" in shown


def serves_node(testbed: Testbed) -> bool:
    """True if processes of the node, which need no entry, get an answer."""
    return tally(testbed.node, VIP, 80, count=5) == {testbed.lab.pods[1].name: 5}


# -- broken manifests ------------------------------------------------------------------------------

BROKEN = """\
apiVersion: v1
kind: Service
metadata: {name: works, namespace: default}
spec:
  clusterIP: 10.96.7.1
  ports:
  - {name: http, port: [80, protocol: TCP}
"""


def unhealthy(testbed: Testbed) -> dict[str, str]:
    """Return the problems that /healthz names."""
    found: dict[str, str] = testbed.agent.health().body.get("problems", {})
    return found


def test_names_that_choose_no_interface_are_no_health(small: Testbed) -> None:
    """A typing error in --devices: the log and /healthz name it, and the interfaces there are."""
    cluster, node = small.cluster, small.node
    cluster.stop(node)
    cluster.launch(node, options=["--devices", "eht0"])
    wait(lambda: [*unhealthy(small)] == ["devices"], "the problem")
    assert "--devices eht0 matches none of the interfaces" in unhealthy(small)["devices"]
    assert "eth0" in unhealthy(small)["devices"]
    cluster.stop(node)
    cluster.start(node)
    assert serves(small, VIP)


def test_a_node_without_usable_interfaces_is_not_healthy_until_it_has_one(small: Testbed) -> None:
    """As a node whose network is not up yet; no --devices are given."""
    cluster, node = small.cluster, small.node
    cluster.stop(node)
    alone = ("unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "alone")
    words = ["run", *cluster.flags(node), "--pin-root", str(node.pin_root)]
    agent = LabAgent(node, [*alone, *COMMAND, *words], cluster.place / "alone.log")
    inside = ("nsenter", "-t", str(agent.process.pid), "-n")

    def status() -> str:
        return cluster.command(node, "status", before=inside).stdout.splitlines()[0]

    try:
        fault = "no interface has programs attached: no interface of this node carries"
        wait(lambda: status().startswith(f"UNHEALTHY: {fault}"), "the problem", timeout=30)
        node.run([*inside, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"])
        node.run([*inside, "ip", "link", "set", "eth0", "up"])
        wait(lambda: fault not in status(), "the end of the problem")
    finally:
        agent.end()
    cluster.start(node)
    assert serves(small, VIP)


def test_a_broken_file_changes_nothing_also_across_a_restart(small: Testbed) -> None:
    """File and line are said; the last good state stays in force until it is fixed."""
    cluster, node, pods = small.cluster, small.node, small.lab.pods
    cluster.put_text("works.yaml", BROKEN)
    small.agent.expect("works.yaml:7: ")
    line = next(line for line in small.agent.log.splitlines() if "works.yaml:7: " in line)
    assert "the last good state stays in force" in line
    assert serves(small, VIP)
    wait(lambda: "works.yaml:7: " in unhealthy(small).get("unreadable", ""), "the problem")
    for end in (cluster.kill, cluster.stop):
        cluster.put("good", *simple("good", GOOD, pods[:1]))
        cluster.await_entry(node, GOOD, 80)
        end(node)
        cluster.put("good", *simple("good", GOOD, pods[1:]))
        cluster.launch(node)
        small.agent.expect("works.yaml:7: ")
        wait(lambda: [*unhealthy(small)] == ["unreadable"], "the end of the start")
        assert serves(small, VIP)
        # Changes of a correct file are applied: those made before the start, and later ones.
        assert ask(small.pod, GOOD, 80).pod == pods[1].name
        cluster.put("whole", *simple("whole", OTHER, pods[1:]))
        cluster.await_entry(node, OTHER, 80)
        assert serves(small, OTHER)
        cluster.drop("whole")
        cluster.await_removal(node, OTHER, 80)
    cluster.put("works", *simple("works", VIP, pods[1:]))
    small.agent.expect("fixed: works.yaml")
    wait(lambda: not unhealthy(small), "the end of the problem")
    assert serves(small, VIP)
    assert ask(small.pod, VIP, 80).pod == pods[1].name
