"""Somebody removes the pins, while the agent runs and while it does not."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab.dial import ask, tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.testbed import ONE, WEB, Testbed, built_testbed, objects


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with one Service of a single pod."""
    with built_testbed(layout="routed") as testbed:
        lab, cluster = testbed
        cluster.put("services", *objects(WEB, lab.pods), *objects(ONE[2], lab.pods[2:3]))
        yield testbed


def test_pins_removed_while_the_agent_runs_come_back_and_no_connection_fails(
    running: Testbed,
) -> None:
    node, cluster, pod = running.node, running.cluster, running.pod
    cluster.start()
    agent = cluster.agents[node.name]
    load = pod.load("connect", ONE[2].vip(4), 80, seconds=60, expected=(running.lab.pods[2].name,))
    load.more(20)
    shutil.rmtree(node.pin_root)
    load.more(20)
    agent.expect("removed by another program; pinned again")
    load.more(20)
    cluster.kill(node)
    load.more(20)
    result = load.stop()
    assert result.failures == {}, result.examples
    cluster.start(node)
    assert "replacing an older build" not in cluster.agents[node.name].log


def passes_fragments(source: Namespace, target: Namespace, address: str) -> bool:
    """True if a datagram that is too long for one packet arrives."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        target.socket(family, socket.SOCK_DGRAM) as receiver,
        source.socket(family, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind((address, 9999))
        receiver.settimeout(stretched(2))
        sender.sendto(bytes(4000), (address, 9999))
        try:
            return len(receiver.recv(8000)) == 4000
        except TimeoutError:
            return False


@pytest.mark.slow
def test_without_pins_and_agent_filters_leave_alone_what_is_for_no_service(
    running: Testbed,
) -> None:
    """A map of programs is empty as soon as nobody holds it, though filters still use it."""
    cluster, pod, lab = running.cluster, running.pod, running.lab
    for name in list(cluster.agents):
        cluster.stop(next(one for one in lab.nodes if one.name == name))
    for each in lab.nodes:
        cluster.command(each, "cleanup")
    cluster.start(options=("--attach", "clsact"))
    backend = lab.pods[2]
    assert tally(pod, ONE[2].vip(4), 80, count=3) == {backend.name: 3}
    for node in lab.nodes:
        cluster.kill(node)
        shutil.rmtree(node.pin_root)
    wait(
        lambda: tally(pod, ONE[2].vip(4), 80, count=1, timeout=0.2) == {"timeout": 1},
        "the steps are missing",
    )
    for family in (4, 6):
        address = str(backend.addresses[family])
        assert tally(pod, address, 8080, count=3) == {backend.name: 3}
        assert ask(pod, address, 8080, protocol="udp").pod == backend.name
        assert passes_fragments(pod, backend, address)
    cluster.start(options=("--attach", "clsact"))
    assert tally(pod, ONE[2].vip(4), 80, count=3) == {backend.name: 3}
