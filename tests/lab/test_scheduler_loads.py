"""Schedulers that compare numbers of connections, with real sockets held open."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, connect
from bpfsvc.devtools.lab.patience import wait
from tests.lab.test_schedulers import (
    SPREAD,
    WHERE,
    apply,
    backends,
    explained,
    shown,
    spread_testbed,
)
from tests.lab.testbed import Testbed

pytestmark = pytest.mark.slow

HOLD = """
import socket, sys, time
held = [socket.create_connection((sys.argv[1], 80)) for _ in range(int(sys.argv[2]))]
print("ready", flush=True)
time.sleep(3600)
"""
"""Opens connections and holds them."""


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab as that of the other schedulers, and one of its own."""
    with spread_testbed() as testbed:
        yield testbed


@pytest.fixture(autouse=True)
def idle(running: Testbed) -> None:
    """Begin without sockets of the node, and with connections of earlier tests closed."""
    wait(lambda: not active(running), "no connection is active")


def active(testbed: Testbed) -> list[int]:
    """Return the numbers of active connections that are not 0, sorted."""
    done = testbed.cluster.command(testbed.node, "maps", "dump", "-o", "json", "backend_loads")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["backend_loads"]
    return sorted(int(row["active"]) for row in rows if row["active"])


@contextmanager
def held(testbed: Testbed, where: str, family: int, count: int) -> Iterator[list[OpenConnection]]:
    """Hold connections open."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(connect(getattr(testbed, where), SPREAD.vip(family), 80))
            for _ in range(count)
        ]


def names(connections: list[OpenConnection]) -> Counter[str]:
    return Counter(connection.who().pod for connection in connections)


@pytest.mark.parametrize("where", WHERE)
def test_held_connections_are_spread_evenly(running: Testbed, where: str, family: int) -> None:
    apply(running, "lc")
    pods = backends(running)
    with held(running, where, family, 3 * len(pods)) as open_now:
        assert names(open_now) == {pod.name: 3 for pod in pods}
        assert active(running) == [3] * len(pods)
        open_now[0].close()
        with held(running, where, family, 1) as opened:
            assert active(running) == [3] * len(pods)
            assert sum(names(opened).values()) == 1
    wait(lambda: not active(running), "all are taken back")


def test_connections_of_all_kinds_are_compared(running: Testbed, family: int) -> None:
    """By packets of a pod and from outside, and by sockets of the node."""
    apply(running, "wlc", f"{backends(running)[0].address(family)}=3")
    pods = backends(running)
    each = len(pods) + 2
    with ExitStack() as stack:
        opened = [
            one
            for where in WHERE
            for one in stack.enter_context(held(running, where, family, each))
        ]
        assert names(opened) == {pods[0].name: 9, **{pod.name: 3 for pod in pods[1:]}}


def test_the_services_command_shows_connections_of_all_kinds(running: Testbed, family: int) -> None:
    """With such a scheduler all connections are known, connections of sockets too."""
    apply(running, "lc")
    each = len(backends(running))
    with ExitStack() as stack:
        for number, where in enumerate(WHERE, 1):
            stack.enter_context(held(running, where, family, each))
            port = shown(running, family)
            assert (port["active"], port["at_least"]) == (number * each, [])
            assert [backend["active"] for backend in port["backends"]] == [number] * each


def test_what_a_killed_process_held_is_taken_back(running: Testbed, family: int) -> None:
    apply(running, "lc")
    pods = backends(running)
    for where in ("node", "pod"):
        process = getattr(running, where).popen(
            [sys.executable, "-c", HOLD, SPREAD.vip(family), str(2 * len(pods))],
            stdout=-1,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == "ready\n"
        assert active(running) == [2] * len(pods)
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait(lambda: not active(running), f"those of {where} are taken back")


def test_a_restart_keeps_the_numbers(running: Testbed) -> None:
    apply(running, "lc")
    pods = backends(running)
    with held(running, "pod", 4, len(pods)), held(running, "node", 4, len(pods)):
        before = active(running)
        running.cluster.kill(running.node)
        running.cluster.start(running.node)
        assert active(running) == before == [2] * len(pods)
        with held(running, "pod", 4, len(pods)) as more:
            assert set(names(more).values()) == {1}


def test_another_scheduler_and_back_keeps_connections_and_numbers(running: Testbed) -> None:
    apply(running, "lc")
    pods = backends(running)
    with held(running, "pod", 4, len(pods)) as old:
        assert set(names(old).values()) == {1}
        apply(running, "rr")
        assert old[0].echo(b"still here")
        apply(running, "lc")
        assert active(running) == [1] * len(pods)


def test_the_numbers_are_explained(running: Testbed) -> None:
    apply(running, "lc")
    pods = backends(running)
    with held(running, "pod", 4, len(pods) - 1):
        reasons = explained(running, 4)
        assert f"scheduler lc: the least loaded of {len(pods)} endpoints" in reasons
        assert reasons.count(": 1 active, ") == len(pods) - 1
        (chosen,) = (line for line in reasons.splitlines() if "chosen now" in line)
        assert ": 0 active, " in chosen
