"""Pods that come and go, and several agents on one kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.datapath.attach import interfaces
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.hooks import Hook
from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.dial import ask, connect, tally
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.topology import Lab
from tests.lab.testbed import ONE, WEB, Testbed, built_testbed, objects


@pytest.fixture(scope="module", params=["routed", "bridge"])
def living(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A lab with one Service of all pods."""
    with built_testbed(layout=request.param) as testbed:
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods))
        testbed.cluster.start()
        yield testbed


def attached(node: LabNode, pod: LabPod) -> bool:
    """True if both hooks of a pod's interface on its node have a program of ours."""
    with node.entered():
        return all(
            interfaces.programs(PinRoot(node.pin_root), tc.attached, pod.host_end.index, hook)
            for hook in Hook
        )


def test_a_new_pod_reaches_services_within_a_second(living: Testbed, family: int) -> None:
    """Within that time its interface has the programs, and then every Service works at once.

    The time counts the agent only, not the setup of neighbours, routes and sockets of the new pod.
    """
    pod = living.node.add_pod()
    try:
        wait(lambda: attached(living.node, pod), "the programs are attached", 1)
        assert set(tally(pod, WEB.vip(family), 80, count=40)) == {
            each.name for each in living.lab.pods if each is not pod
        }
    finally:
        pod.remove()


def test_a_new_pod_serves_as_a_backend(living: Testbed, family: int) -> None:
    """A pod starts, becomes the backend of a Service, and is removed while connections continue."""
    pods = list(living.lab.pods)
    new = living.lab.nodes[1].add_pod()
    new.serve()
    living.cluster.apply("one", *objects(ONE[0], [new]))
    with connect(living.pod, WEB.vip(family), 80) as conversation:
        conversation.who()
        for client in (living.pod, living.node):
            assert tally(client, ONE[0].vip(family), 80, count=20) == {new.name: 20}
        living.cluster.apply("one", *objects(ONE[0], pods[3:]))
        new.remove()
        assert conversation.echo(b"not affected")
        assert ask(living.pod, ONE[0].vip(family), 80).pod == pods[3].name
    for agent in living.cluster.agents.values():
        assert agent.health().status == 200
        assert "Traceback" not in agent.log


def test_interfaces_that_vanish_during_attachment_do_no_harm(living: Testbed) -> None:
    """Interfaces appear and vanish faster than the agent can read them."""
    agent = living.cluster.agents[living.node.name]
    for _ in range(10):
        living.node.add_pod().remove()
    last = living.node.add_pod()
    try:
        wait(
            lambda: "timeout" not in tally(last, WEB.vip(4), 80, count=1, timeout=0.02),
            "the last pod reaches a Service",
        )
    finally:
        last.remove()
    assert agent.health().status == 200
    assert "Traceback" not in agent.log
    assert "is not attached" not in agent.log


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["own cgroups", "one cgroup tree"])
def test_two_agents_on_one_kernel_do_not_disturb_each_other(shared: bool) -> None:
    """The same cluster IP has different backends on two agents, whatever they share.

    Both use one kernel and perhaps one cgroup: packets are distinguished by their interface,
    sockets by their network namespace.
    """
    with Lab("routed") as lab:
        lab.serve()
        first, second = lab.nodes
        root = first.cgroup.parent if shared and first.cgroup else None
        with (
            LabCluster(lab, nodes=[first], cgroup_root=root) as one,
            LabCluster(lab, nodes=[second], cgroup_root=root) as two,
        ):
            for cluster, node in ((one, first), (two, second)):
                cluster.put("services", *objects(WEB, list(node.pods.values())))
                cluster.launch(node)
            one.agents[first.name].ready()
            two.agents[second.name].ready()

            def check(*nodes_with_agents: object) -> None:
                for node in lab.nodes:
                    if node not in nodes_with_agents:
                        continue
                    own = {pod.name for pod in node.pods.values()}
                    for place in (node, *node.pods.values()):
                        assert set(tally(place, WEB.vip(4), 80, count=30)) == own
                        assert set(tally(place, WEB.vip(6), 80, "udp", count=30)) == own
                    for address in (node.address(), "127.0.0.1"):
                        assert set(tally(node, address, WEB.node_port, count=30)) == own

            check(first, second)
            two.stop(second)
            check(first, second)
            assert two.command(second, "cleanup").returncode == 0
            second.pin_root.mkdir(exist_ok=True)
            check(first)
            assert tally(second, WEB.vip(4), 80, count=1, timeout=0.1) == {"timeout": 1}
            two.start(second)
            check(first, second)
