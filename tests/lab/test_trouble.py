"""What goes wrong while an agent runs: it is named, what worked goes on, and it is got over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from bpfsvc.lab.cluster import Agent, Cluster
from bpfsvc.lab.dial import Conversation, ask, connect, tally
from bpfsvc.lab.objects import Object, port, service, slices
from bpfsvc.lab.patience import stretched, wait
from bpfsvc.lab.topology import Lab
from tests.lab.scene import WEB, Scene, built, objects

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
"""Room for little more than the Services of the scene: one map is full before the others."""

VIP = "10.96.7.1"
OTHER = "10.96.7.2"
HTTP = [port(8080, "http")]


def simple(
    name: str, address: str, backends: Any, ports: list[Object] | None = None, **spec: Any
) -> list[Object]:
    """Give a ClusterIP Service for TCP and its slices."""
    wanted = ports or [port(80, "http")]
    serving = [port(8080, each["name"]) for each in wanted]
    return [service(name, [address], wanted, **spec), *slices(name, backends, serving)]


def strangers(count: int, first: int = 1) -> list[Any]:
    """Give places that exist nowhere, to fill maps with."""
    node = SimpleNamespace(name="node-9")
    return [
        SimpleNamespace(addresses={4: f"10.244.9.{number}"}, node=node)
        for number in range(first, first + count)
    ]


@pytest.fixture(scope="module")
def small(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """One node with one Service of one pod, and an agent with small maps."""
    with (
        Lab("routed", nodes=1, families=(4,)) as lab,
        Cluster(lab, options=getattr(request, "param", OTHERS)) as cluster,
    ):
        lab.serve()
        cluster.put("works", *simple("works", VIP, lab.pods[1:]))
        cluster.start()
        yield Scene(lab, cluster)


def agent_of(scene: Scene) -> Agent:
    """Give the agent of the first node."""
    return scene.cluster.agents[scene.node.name]


def serves(scene: Scene, address: str, number: int = 80) -> bool:
    """Whether pods and processes of the node are answered."""
    name = scene.lab.pods[1].name
    return all(
        tally(place, address, number, count=5) == {name: 5} for place in (scene.pod, scene.node)
    )


def _crowd(flag: str, backends: Any) -> list[Object]:
    """Give a Service too big for what ``flag`` allows."""
    if flag == "--max-frontends":
        many = [f"80.11.12.{number}" for number in range(1, 21)]
        return simple("crowd", "10.96.7.9", backends, externalIPs=many)
    if flag == "--max-services":
        return simple(
            "crowd", "10.96.7.9", backends, [port(number, f"p{number}") for number in range(81, 91)]
        )
    return simple("crowd", "10.96.7.9", strangers(20))


FLAGS = [
    (OTHERS, "--max-frontends"),
    (OTHERS, "--max-backends"),
    (OTHERS, "--max-services"),
    (SLOTS, "--max-backend-slots"),
]


@pytest.mark.parametrize(
    ("small", "flag"), FLAGS, indirect=["small"], ids=[flag for _, flag in FLAGS]
)
def test_a_full_map_is_named_and_stops_nobody_else(small: Scene, flag: str) -> None:
    """The log names map and flag, /healthz says 503 and why; others work, change and come.

    Once there is room again all is well.
    """
    agent, cluster, pods = agent_of(small), small.cluster, small.lab.pods
    assert agent.health().status == 200
    said = len(agent.log)
    cluster.put("crowd", *_crowd(flag, pods[1:]))
    wait(lambda: agent.health().status == 503, "the agent is unwell")
    assert flag in str(agent.health().body)
    lines = [line for line in agent.log[said:].splitlines() if "ERROR" in line]
    assert lines
    assert all(flag in line and "crowd" in line for line in lines)
    assert "Traceback" not in agent.log
    assert serves(small, VIP)
    cluster.put("new", *simple("new", OTHER, pods[1:]))
    cluster.arrived(small.node, OTHER, 80)
    assert serves(small, OTHER)
    cluster.drop("crowd")
    wait(lambda: agent.health().status == 200, "the agent is well again")
    cluster.drop("new")
    cluster.left(small.node, OTHER, 80)
    assert serves(small, VIP)


@pytest.mark.slow
@pytest.mark.parametrize("small", [SLOTS], indirect=True, ids=["--max-backend-slots"])
def test_a_service_gets_in_when_another_makes_room(small: Scene) -> None:
    """What found no room is tried again as soon as something leaves."""
    cluster, agent, pods = small.cluster, agent_of(small), small.lab.pods
    cluster.put("big", *simple("big", "10.96.7.20", strangers(7)))
    cluster.arrived(small.node, "10.96.7.20", 80)
    cluster.put("late", *simple("late", OTHER, [*pods[1:], *strangers(7, first=20)]))
    wait(lambda: agent.health().status == 503, "the agent is unwell")
    cluster.drop("big")
    try:
        wait(lambda: agent.health().status == 200, "the agent is well again")
        assert cluster.row(small.node, OTHER, 80) is not None
    finally:
        cluster.drop("late")
        cluster.left(small.node, OTHER, 80)


@pytest.mark.slow
def test_a_full_table_of_connections_harms_no_connection(small: Scene) -> None:
    """Those that work go on; what finds no room must wait; room comes back when some end."""
    with ExitStack() as stack:
        held: list[Conversation] = []
        with suppress(TimeoutError):
            while len(held) < CONNECTIONS:
                held.append(stack.enter_context(connect(small.pod, VIP, 80)))
                held[-1].who()
        # Two entries for each; the last of them found no room.
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


def serves_node(scene: Scene) -> bool:
    """Whether processes of the node, who need no entry, are answered."""
    return tally(scene.node, VIP, 80, count=5) == {scene.lab.pods[1].name: 5}


# -- other programs --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> Iterator[Scene]:
    """A lab with a Service of all pods; only the second node has an agent.

    Its programs are foreign ones to the agent of the first.
    """
    with built(layout="routed") as scene:
        scene.cluster.options = ("--attach", "clsact")
        scene.cluster.put("services", *objects(WEB, scene.lab.pods))
        scene.cluster.start(scene.lab.nodes[1])
        yield scene


def test_foreign_programs_are_told_of_and_left_alone(plain: Scene) -> None:
    """One that comes first is warned about, and none is ever touched, not even by cleanup."""
    first, second = plain.lab.nodes
    program = second.pin_root / "current" / "programs" / "collect"  # any that is not this agent's
    device = plain.lab.pods[1].host_interface
    first.run(["tc", "qdisc", "replace", "dev", device, "clsact"])
    for hook, priority in (("ingress", "1"), ("egress", "60000")):
        first.run(
            [
                "tc",
                "filter",
                "add",
                "dev",
                device,
                hook,
                "prio",
                priority,
                "handle",
                "7",
                "bpf",
                "direct-action",
                "object-pinned",
                str(program),
            ]
        )

    def foreign() -> list[str]:
        return [
            line
            for hook in ("ingress", "egress")
            for line in first.run(["tc", "filter", "show", "dev", device, hook]).stdout.splitlines()
            if "handle 0x7 " in line
        ]

    before = foreign()
    assert len(before) == 2
    plain.cluster.start(first)
    log = plain.cluster.agents[first.name].log
    warnings = [line for line in log.splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert f"{device} ingress: another program comes first" in warnings[0]
    assert "--tc-priority" in warnings[0]
    names = {pod.name for pod in plain.lab.pods}
    assert set(tally(plain.pod, WEB.vip(4), 80, count=40)) == names
    assert foreign() == before
    plain.cluster.stop(first)
    assert plain.cluster.command(first, "cleanup").returncode == 0
    first.pin_root.mkdir(exist_ok=True)
    assert foreign() == before


def test_a_place_taken_by_another_program_is_named_and_others_are_attached(plain: Scene) -> None:
    """Exactly our priority and handle: that interface is left out, with the flag that helps."""
    first, second = plain.lab.nodes
    device = plain.lab.pods[1].host_interface
    words = first_filter(second, plain.lab.pods[2].host_interface)
    first.run(["tc", "qdisc", "replace", "dev", device, "clsact"])
    first.run(
        [
            "tc",
            "filter",
            "add",
            "dev",
            device,
            "ingress",
            "prio",
            words["priority"],
            "handle",
            words["handle"],
            "bpf",
            "direct-action",
            "object-pinned",
            str(second.pin_root / "current" / "programs" / "ingress"),
        ]
    )
    plain.cluster.start(first)
    log = plain.cluster.agents[first.name].log
    assert f"{device} is not attached" in log
    assert "--tc-priority" in log
    assert device in plain.cluster.agents[first.name].health().body["notes"]["attachments"]
    assert set(tally(plain.pod, WEB.vip(4), 80, count=40)) == {pod.name for pod in plain.lab.pods}


def first_filter(node: Any, device: str) -> dict[str, str]:
    """Give priority and handle of the agent's filter on an interface, as tc shows them."""
    shown = node.run(["tc", "filter", "show", "dev", device, "ingress"]).stdout
    found = re.search(r"pref (\d+) bpf chain 0 handle (0x[0-9a-f]+)", shown)
    assert found
    return {"priority": found[1], "handle": found[2]}


# -- broken manifests ------------------------------------------------------------------------------

BROKEN = """\
apiVersion: v1
kind: Service
metadata: {name: works, namespace: default}
spec:
  clusterIP: 10.96.7.1
  ports:
  - {name: http, port: eighty, protocol: TCP}
"""


def test_a_broken_file_changes_nothing_also_across_a_restart(small: Scene) -> None:
    """File, line and reason are said; the last good state stays in force until it is mended."""
    cluster, node, pods = small.cluster, small.node, small.lab.pods
    cluster.put_text("works.yaml", BROKEN)
    agent_of(small).expect("works.yaml:7: ")
    line = next(line for line in agent_of(small).log.splitlines() if "works.yaml:7: " in line)
    assert "port" in line
    assert "the last good state stays in force" in line
    assert serves(small, VIP)
    for end in (cluster.kill, cluster.stop):
        end(node)
        cluster.start(node)
        agent_of(small).expect("works.yaml:7: ")
        assert serves(small, VIP)
        # A file that is whole is followed meanwhile.
        cluster.put("whole", *simple("whole", OTHER, pods[1:]))
        cluster.arrived(node, OTHER, 80)
        assert serves(small, OTHER)
        cluster.drop("whole")
        cluster.left(node, OTHER, 80)
    cluster.put("works", *simple("works", VIP, pods[1:]))
    agent_of(small).expect("mended: works.yaml")
    assert serves(small, VIP)
    assert ask(small.pod, VIP, 80).pod == pods[1].name
