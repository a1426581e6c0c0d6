"""The first moments of an agent: what began without one is served, and what runs is not disturbed.

Pods that start while no agent runs are served before the next one knows anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.fast_path import FAST, Counts, forbid_invalid
from tests.lab.testbed import FAMILIES, ONE, Testbed, built_testbed, objects


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with an API server, one agent, and a Service of a single pod."""
    with built_testbed(served=True, layout="routed") as testbed:
        lab, cluster = testbed
        cluster.nodes = lab.nodes[:1]
        cluster.put("one", *objects(ONE[0], [lab.pods[1]]))
        cluster.start()
        yield testbed


def is_served(testbed: Testbed, pod: LabPod) -> bool:
    """True if a pod reaches the Service over both families."""
    name = testbed.lab.pods[1].name
    return all(
        tally(pod, ONE[0].vip(family), 80, count=1, timeout=0.3) == {name: 1} for family in FAMILIES
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--max-node-addresses", "1000")], ids=["same", "newer"])
@pytest.mark.parametrize("attach", ["auto", "clsact"])
def test_a_pod_that_came_meanwhile_is_served_before_the_api_server_answers(
    running: Testbed, options: tuple[str, ...], attach: str
) -> None:
    """With the same build and with a newer one, which is not attached before it is complete."""
    node, cluster = running.node, running.cluster
    cluster.kill(node)
    before = node.add_pod()
    cluster.api.go_away()
    try:
        assert not is_served(running, before)
        flags = (*options, "--attach", attach, "--last-good-after", "10m")
        agent = cluster.launch(node, options=flags)
        wait(lambda: is_served(running, before), "the pod that came before the agent is served")
        during = node.add_pod()
        wait(lambda: is_served(running, during), "the pod that came after it is served")
        assert agent.health().status != 200
        assert " ready: " not in agent.log
    finally:
        cluster.api.come_back()
    agent.ready()
    assert is_served(running, before)
    assert is_served(running, during)
    after = node.add_pod()
    wait(lambda: is_served(running, after), "the pod that came last is served")


@pytest.mark.slow
def test_a_client_outside_is_served_by_a_pod_of_a_bridge_that_came_meanwhile() -> None:
    """Its address was known before, so the programs of the last agent send questions to it.

    They are redirected to the bridge. If answers took the stack, the CNI would masquerade them.
    """
    network = {"layout": "bridge", "cni_masquerade": True}
    with built_testbed(served=True, **network) as testbed:
        node, cluster = testbed.node, testbed.cluster
        pod = node.add_pod("late")
        cluster.nodes = testbed.lab.nodes[:1]
        cluster.put("one", *objects(ONE[0], [pod]))
        cluster.options = FAST
        cluster.start()
        cluster.kill(node)
        cluster.api.go_away()
        pod.remove()
        pod = node.add_pod("late", map(str, pod.addresses.values()))
        pod.serve()
        agent = cluster.launch(node, options=("--last-good-after", "10m"))
        for family in FAMILIES:
            target = node.address(family), ONE[0].node_port
            asked = partial(tally, testbed.client, *target, timeout=0.3)
            wait(lambda asked=asked: asked(count=1) == {"late": 1}, "the pod serves clients")  # type: ignore[misc]
            counts = Counts(node, family)
            assert asked(count=20) == {"late": 20}
            counts.all_fast()
        assert " ready: " not in agent.log


@pytest.mark.slow
@pytest.mark.parametrize("invalid", ["passes", "is dropped"])
def test_a_pod_of_a_bridge_that_came_meanwhile_serves_what_other_nodes_send_it(
    invalid: str,
) -> None:
    """Its answers take the stack, as no program sees them come: so do questions, then.

    Where netfilter drops answers that it calls invalid, the second SYN of a client is the first
    that takes the stack.
    """
    with built_testbed(layout="bridge", cni_masquerade=True) as testbed:
        entry, node = testbed.lab.nodes[:2]
        cluster = testbed.cluster
        pod = node.add_pod("late")
        cluster.put("one", *objects(ONE[0], [pod]))
        cluster.options = FAST
        cluster.start()
        cluster.kill(node)
        pod.remove()
        pod = node.add_pod("late", map(str, pod.addresses.values()))
        pod.serve()
        if invalid == "is dropped":
            forbid_invalid(node)
        for family in FAMILIES:
            target = entry.address(family), ONE[0].node_port
            assert tally(testbed.client, *target, count=3, timeout=10) == {"late": 3}
            direct = pod.address(family), 8080
            assert tally(testbed.pod, *direct, count=3, timeout=10) == {"late": 3}


def lost(namespace: Namespace) -> int:
    """Return how many segments TCP sent again there, but for those that had arrived after all.

    (Of these its peer says so: RFC 2883. A busy machine makes TCP impatient.)
    """
    counts: dict[str, int] = {}
    for file, prefix in (("snmp", "Tcp:"), ("netstat", "TcpExt:")):
        lines = namespace.run(["cat", f"/proc/net/{file}"]).stdout.splitlines()
        names, values = (line.split()[1:] for line in lines if line.startswith(prefix))
        counts |= zip(names, map(int, values), strict=True)
    return counts["RetransSegs"] - counts["TCPDSACKRecv"]


@pytest.mark.slow
def test_no_running_connection_loses_a_packet_when_interfaces_are_attached_first() -> None:
    """Between pods of one node and of two, where there is tcx.

    (While the kernel adds a clsact qdisc, it drops what the interface is sending.)
    """
    with built_testbed(layout="routed") as testbed:
        lab, cluster = testbed
        loads = [
            lab.pods[0].load("stream", backend.address(family), seconds=60, connections=5)
            for backend in lab.pods[1:3]
            for family in FAMILIES
        ]
        for load in loads:
            load.more(200)
        before = [lost(pod) for pod in lab.pods[:3]]
        cluster.start()
        for load in loads:
            load.more(200)
        assert [lost(pod) for pod in lab.pods[:3]] == before
        for load in loads:
            result = load.stop()
            assert result.failures == {}, result.examples
