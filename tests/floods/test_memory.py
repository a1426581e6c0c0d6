"""The agent's memory cgroup becomes too small: connections and Services stay as they are."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.devtools.lab.cluster import LabAgent
from bpfsvc.devtools.lab.load import more
from bpfsvc.devtools.lab.objects import Object, service, slices
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.rights import limited
from tests.floods.memory_group import MemoryGroup, memory_group
from tests.floods.test_resources import serves_a_change, traffic
from tests.lab.test_traffic_xdp import counter
from tests.lab.testbed import SLICE_PORTS, WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

MB = 1 << 20
LITTLE = 4 * MB
"""Less than an agent needs to start."""

NO_MEMORY = "no memory for an entry of map"
MANY = 3000
"""Services whose entries, and whose objects in an agent, need more than a little memory."""


@pytest.fixture(scope="module")
def group() -> Iterator[MemoryGroup]:
    with memory_group() as made:
        yield made


@pytest.fixture(scope="module")
def testbed(group: MemoryGroup) -> Iterator[Testbed]:
    """A lab in which the agent of the client's node is in the group, and its maps are, too."""
    with built_testbed(served=True, layout="routed") as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.start(made.lab.nodes[1])
        launch(made, group).ready()
        yield made


def launch(testbed: Testbed, group: MemoryGroup) -> LabAgent:
    return testbed.cluster.launch(testbed.node, before=[*group.command, *limited()])


def many(testbed: Testbed, count: int) -> list[Object]:
    """Return so many Services of all pods, and their slices."""
    return list(
        itertools.chain.from_iterable(
            [
                service(f"many-{number}", [f"10.97.{number // 200}.{number % 200 + 1}"]),
                *slices(f"many-{number}", testbed.lab.pods, SLICE_PORTS),
            ]
            for number in range(count)
        )
    )


@contextmanager
def traffic_without_new_entries(testbed: Testbed) -> Iterator[None]:
    """Connections that are open, and new ones of sockets that are translated; none may fail."""
    loads = [
        testbed.client.load(
            "stream", testbed.node.address(4), WEB.node_port, interval=0.05, seconds=600
        ),
        testbed.pod.load("stream", WEB.vip(6), 80, interval=0.05, seconds=600),
        testbed.node.load("connect", WEB.vip(4), 80, interval=0.05, seconds=600),
    ]
    more(loads, 10)
    yield
    more(loads, 10)
    assert [load.stop().failures for load in loads] == [{}] * len(loads)


def says_that_new_connections_lack_memory(testbed: Testbed) -> None:
    """New connections through packets are dropped; the table of connections is not full."""
    node = testbed.node
    new = testbed.client.load("connect", node.address(4), WEB.node_port, seconds=600)
    wait(lambda: counter(node, "dropped__no_memory") > 0, "connections without memory count", 60)
    new.stop()
    assert counter(node, "dropped__connections_full") == 0


def test_entries_without_memory_are_said_and_cost_nothing_that_works(
    testbed: Testbed, group: MemoryGroup
) -> None:
    """The maps are charged to a group that is full; the agent is outside, as after a restart."""
    testbed.cluster.kill(testbed.node)
    testbed.cluster.start(testbed.node)
    agent = testbed.agent
    with traffic_without_new_entries(testbed):
        group.leave_room(0)
        try:
            testbed.cluster.put("many", *many(testbed, 400))
            wait(lambda: NO_MEMORY in str(agent.health().body), "/healthz says so", 60)
            assert "is full" not in agent.log
            status = testbed.cluster.command(testbed.node, "status").stdout
            assert f"not up to date: {NO_MEMORY}" in status
            assert "give the agent's pod more memory" in status
            says_that_new_connections_lack_memory(testbed)
        finally:
            group.lift()
        agent.ready(90)
        last = testbed.cluster.entry(testbed.node, "10.97.1.200", 80)
        assert last is not None
    with traffic(testbed):
        testbed.cluster.drop("many")
        serves_a_change(testbed, 0)
    assert "Traceback" not in agent.log


def test_an_agent_that_is_killed_for_want_of_memory_costs_nothing_and_comes_back(
    testbed: Testbed, group: MemoryGroup
) -> None:
    """As long as there is too little, it is killed again; then status says that none runs."""
    testbed.cluster.kill(testbed.node)
    agent = launch(testbed, group)
    agent.ready()
    with traffic(testbed):
        group.leave_room(LITTLE)
        try:
            testbed.cluster.put("many", *many(testbed, MANY))
            assert agent.process.wait(stretched(60)) == -signal.SIGKILL
            assert "not running" in testbed.cluster.command(testbed.node, "status").stdout
            group.leave_room(LITTLE)
            assert launch(testbed, group).process.wait(stretched(60)) == -signal.SIGKILL
            assert group.kills == 2
            testbed.cluster.drop("many")
        finally:
            group.lift()
        agent = launch(testbed, group)
        agent.ready(60)
        serves_a_change(testbed, 1)
    assert testbed.cluster.command(testbed.node, "status").stdout.startswith("healthy")
