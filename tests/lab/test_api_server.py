"""Agents that get their objects from an API server, which is not always there.

Whatever becomes of the server and of the agent, the node goes on serving what was last known; what
changed meanwhile is in force soon after both are back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc import __version__
from bpfsvc.devtools.lab.dial import ask, connect
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.testbed import FAMILIES, ONE, WEB, Testbed, built_testbed, objects

IMPATIENT = ("--last-good-after", "500ms")


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with an API server, one agent, and Services of a pod each."""
    with built_testbed(served=True, layout="routed") as testbed:
        lab, cluster = testbed
        cluster.nodes = lab.nodes[:1]
        _point(testbed, lab.pods[1])
        cluster.start()
        yield testbed


def _point(testbed: Testbed, pod: LabPod, *more: LabPod) -> None:
    """Make one pod the endpoint of a Service, and several pods those of another."""
    testbed.cluster.put("one", *objects(ONE[0], [pod]))
    testbed.cluster.put("web", *objects(WEB, [pod, *more]))


def _served_by(testbed: Testbed, pod: LabPod) -> None:
    """Wait until all that is asked of the Service is answered by a pod, over both families."""
    wait(
        lambda: all(
            ask(testbed.pod, ONE[0].vip(family), 80).pod == pod.name for family in FAMILIES
        ),
        f"{pod.name} answers",
    )


def _health(testbed: Testbed) -> str:
    return str(testbed.agent.health().body)


def test_a_change_at_the_server_reaches_packets(running: Testbed) -> None:
    for pod in running.lab.pods[1:]:
        _point(running, pod)
        _served_by(running, pod)


def test_the_log_says_what_is_on_and_with_v_2_what_changes(running: Testbed) -> None:
    lab, cluster = running.lab, running.cluster
    _point(running, lab.pods[1])
    cluster.settle()
    cluster.stop(running.node)
    agent = cluster.launch(running.node, options=("-v", "2"))
    agent.ready()
    agent.expect(" ready: ")
    lines = agent.log.splitlines()
    start = f"bpfsvc {__version__} on node {running.node.name}, kernel {os.uname().release}: mode "
    assert start in lines[0]
    assert " settings: socket LB for the node and its pods, " in lines[1]
    assert sum(" ready: " in line and "attached to " in line for line in lines) == 1
    assert not any("Service default/" in line for line in lines), "nothing has changed yet"
    _point(running, lab.pods[2])
    # Each family has a slice of its own. A sync may have got the first one alone.
    agent.expect("Service default/web: +")
    assert re.search(r"Service default/web: (\+2 -2|\+1 -1) endpoints \[\+", agent.log)
    cluster.stop(running.node)
    quiet = cluster.launch(running.node)
    quiet.ready()
    _point(running, lab.pods[1])
    _served_by(running, lab.pods[1])
    assert "Service default/" not in quiet.log


def test_a_service_that_is_deleted_is_served_no_more(running: Testbed) -> None:
    _point(running, running.lab.pods[1])
    running.cluster.put("two", *objects(ONE[1], [running.lab.pods[2]]))
    running.cluster.await_entry(running.node, ONE[1].vip(4), 80)
    running.cluster.drop("two")
    running.cluster.await_removal(running.node, ONE[1].vip(4), 80)
    _served_by(running, running.lab.pods[1])


def test_without_the_server_services_continue_and_missed_changes_follow(running: Testbed) -> None:
    """Deletions among it, though the server has forgotten them when it is back."""
    lab, cluster = running.lab, running.cluster
    _point(running, lab.pods[1])
    cluster.put("two", *objects(ONE[1], [lab.pods[2]]))
    cluster.settle()
    with connect(running.pod, ONE[0].vip(4), 80) as conversation:
        conversation.who()
        cluster.api.go_away()
        assert ask(running.pod, WEB.vip(4), 80).pod == lab.pods[1].name
        _point(running, lab.pods[3])
        cluster.drop("two")
        cluster.api.compact()
        assert ask(running.pod, ONE[0].vip(4), 80).pod == lab.pods[1].name
        cluster.api.come_back()
        _served_by(running, lab.pods[3])
        cluster.await_removal(running.node, ONE[1].vip(4), 80)
        assert conversation.echo(bytes(10_000))


def test_a_service_that_becomes_unusable_meanwhile_holds_back_nothing_else(
    running: Testbed,
) -> None:
    """It is served as before, and a Service that was deleted meanwhile is served no more."""
    lab, cluster = running.lab, running.cluster
    _point(running, lab.pods[1])
    cluster.put("two", *objects(ONE[1], [lab.pods[2]]))
    cluster.put("gone", *objects(ONE[2], [lab.pods[2]]))
    cluster.settle()
    _saved(running)
    cluster.kill(running.node)
    unusable, *slices = objects(ONE[1], [lab.pods[2]])
    _, *moved = objects(ONE[1], [lab.pods[3]])
    cluster.put("two", unusable | {"spec": unusable["spec"] | {"ports": [{"port": 0}]}}, *slices)
    cluster.drop("gone")
    cluster.launch(running.node).ready()
    cluster.await_removal(running.node, ONE[2].vip(4), 80)
    assert ask(running.pod, ONE[1].vip(4), 80).pod == lab.pods[2].name
    # Its pods may be others meanwhile.
    cluster.put("two", unusable | {"spec": unusable["spec"] | {"ports": [{"port": 0}]}}, *moved)
    wait(lambda: ask(running.pod, ONE[1].vip(4), 80).pod == lab.pods[3].name, "the new pod")
    cluster.put("two", *objects(ONE[1], [lab.pods[2]]))
    wait(lambda: ask(running.pod, ONE[1].vip(4), 80).pod == lab.pods[2].name, "the mended Service")
    cluster.drop("two")
    cluster.await_removal(running.node, ONE[1].vip(4), 80)


def test_an_empty_mode_is_that_of_the_servers_release(running: Testbed, tmp_path: Path) -> None:
    """An agent that began without the server ends if the release means another mode."""
    cluster, node = running.cluster, running.node
    flags = cluster.flags(node)
    path = tmp_path / "config.conf"
    path.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ''\n"
        f"clientConnection: {{kubeconfig: {flags[flags.index('--kubeconfig') + 1]}}}\n"
    )
    cluster.stop(node)
    cluster.api.faults.minor = "40"
    cluster.api.go_away()
    try:
        agent = cluster.launch(node, options=("--config", str(path), *IMPATIENT))
        agent.expect('mode is "", which is iptables to kube-proxy before 1.40; ')
        agent.ready()
    finally:
        cluster.api.come_back()
    agent.expect('mode "" is nftables to kube-proxy 1.40, the release of the API server, and was')
    assert agent.process.wait(timeout=stretched(10)) == 1
    agent = cluster.launch(node, options=("--config", str(path)))
    agent.expect('mode is "", which is nftables to kube-proxy 1.40, ')
    agent.ready()
    cluster.api.faults.minor = "36"
    cluster.stop(node)
    cluster.start(node)


def test_an_agent_that_starts_without_the_server_changes_nothing(running: Testbed) -> None:
    """What is in the kernel may be newer than what was saved; only interfaces are followed."""
    lab, cluster = running.lab, running.cluster
    _point(running, lab.pods[1])
    _served_by(running, lab.pods[1])
    _saved(running)
    serving = lab.pods[2]
    _point(running, serving)
    _served_by(running, serving)
    cluster.kill(running.node)
    cluster.api.go_away()
    try:
        agent = cluster.launch(running.node, options=IMPATIENT)
        agent.expect("stay as an earlier agent left them")
        agent.ready()
        assert "stay as an earlier agent left them" in _health(running)
        _served_by(running, serving)
        late = running.node.add_pod()
        wait(
            lambda: ask(late, ONE[0].vip(4), 80).pod == serving.name,
            "a pod that came later reaches Services",
        )
        late.remove()
    finally:
        cluster.api.come_back()
    _point(running, lab.pods[3])
    _served_by(running, lab.pods[3])
    wait(lambda: "earlier agent" not in _health(running), "nothing is noted any more")


@pytest.mark.slow
def test_a_node_that_boots_without_the_server_serves_the_last_good_state(running: Testbed) -> None:
    """Its kernel is empty; what was saved is served, and said to be old as long as it is."""
    lab, cluster = running.lab, running.cluster
    _point(running, lab.pods[1])
    cluster.put("two", *objects(ONE[1], [lab.pods[2]]))
    cluster.settle()
    _saved(running)
    cluster.stop(running.node)
    cluster.command(running.node, "cleanup")
    cluster.api.go_away()
    try:
        agent = cluster.launch(running.node, options=IMPATIENT)
        agent.expect("serving the snapshot")
        agent.ready()
        assert "serving the snapshot" in _health(running)
        _served_by(running, lab.pods[1])
        assert ask(running.pod, ONE[1].vip(6), 80).pod == lab.pods[2].name
        cluster.drop("two")
    finally:
        cluster.api.come_back()
    cluster.await_removal(running.node, ONE[1].vip(4), 80)
    _served_by(running, lab.pods[1])
    wait(lambda: "snapshot" not in _health(running), "nothing is noted any more")


def test_without_server_and_snapshot_nothing_is_served_and_the_log_says_so(
    running: Testbed, tmp_path: Path
) -> None:
    cluster = running.cluster
    _point(running, running.lab.pods[1])
    cluster.stop(running.node)
    cluster.command(running.node, "cleanup")
    cluster.api.go_away()
    try:
        options = (*IMPATIENT, "--last-good", str(tmp_path / "none"))
        agent = cluster.launch(running.node, options=options)
        agent.expect("there is no snapshot: nothing is served")
        assert agent.health().status == 503
    finally:
        cluster.api.come_back()
    agent.ready()
    _served_by(running, running.lab.pods[1])


def _saved(testbed: Testbed) -> None:
    """Wait until what is known now was written to the file."""
    cluster = testbed.cluster
    file = cluster.snapshot_file(testbed.node)
    before = file.stat().st_mtime_ns if file.exists() else 0
    cluster.stop(testbed.node)
    wait(lambda: file.stat().st_mtime_ns > before, "the last good state is saved")
    cluster.start(testbed.node)
