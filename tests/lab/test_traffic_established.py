"""The fast path in the middle of connections, on nodes with a network policy."""

from __future__ import annotations

import itertools
import re
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, connect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from tests.lab.established import (
    become_fast,
    counted,
    established,
    forget,
    invalid,
    tracked,
)
from tests.lab.fast_path import fast_packets
from tests.lab.testbed import FAMILIES, ONE, Testbed

_BIG = 32 << 20


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """Pods with separate host interfaces."""
    with established(layout="routed", cni_masquerade=True) as made:
        for node in made.lab.nodes:
            wait(
                lambda node=node: (
                    "for established connections" in made.cluster.command(node, "status").stdout
                ),  # type: ignore[misc]
                "the fast path is used",
            )
        yield made


WAYS = pytest.mark.parametrize("way", ["to the pod itself", "through a Service"])
BACKENDS = pytest.mark.parametrize("backend", [1, 2], ids=["same node", "other node"])


def target(testbed: Testbed, way: str, backend: int, family: int) -> tuple[str, int]:
    """Return where to connect to."""
    if way == "to the pod itself":
        return testbed.lab.pods[backend].address(family), 8080
    return ONE[backend].vip(family), 80


def nodes_of(testbed: Testbed, backend: int) -> list[LabNode]:
    """Return the nodes that the connection to a backend passes."""
    return testbed.lab.nodes[: 2 if backend == 2 else 1]


@pytest.fixture
def opened(testbed: Testbed, family: int, way: str, backend: int) -> Iterator[OpenConnection]:
    """A connection with a middle that is fast on all its nodes."""
    with connect(testbed.pod, *target(testbed, way, backend, family), timeout=10) as made:
        made.who()
        become_fast(made, *nodes_of(testbed, backend))
        yield made


@WAYS
@BACKENDS
def test_the_middle_of_a_connection_is_fast_and_netfilter_sees_it_begin_and_end(
    testbed: Testbed, family: int, way: str, backend: int
) -> None:
    nodes, before = nodes_of(testbed, backend), invalid(testbed)
    seen = [counted(node, "seen") for node in nodes]
    with connect(testbed.pod, *target(testbed, way, backend, family), timeout=10) as opened:
        opened.who()
        for node, old in zip(nodes, seen, strict=True):
            assert counted(node, "seen") > old
        become_fast(opened, *nodes)
        fast = [fast_packets(node) for node in nodes]
        seen = [counted(node, "seen") for node in nodes]
        for _ in range(1000):
            assert opened.echo(b"question")
        port = opened.socket.getsockname()[1]
    for node, old, old_seen in zip(nodes, fast, seen, strict=True):
        assert fast_packets(node) - old > 1600
        assert counted(node, "seen") > old_seen
        wait(
            lambda node=node: _states(testbed, node, family, port) <= {"TIME_WAIT", "CLOSE"},  # type: ignore[misc]
            "netfilter has seen the end",
        )
    assert invalid(testbed) == before


def _states(testbed: Testbed, node: LabNode, family: int, port: int) -> set[str]:
    entries = tracked(node, testbed.pod, family)
    return {line.split()[3] for line in entries if f"sport={port} " in line}


@pytest.mark.slow
@WAYS
@BACKENDS
def test_large_data_arrives_whole_and_the_connection_ends(
    testbed: Testbed, family: int, way: str, backend: int
) -> None:
    before, fast = invalid(testbed), fast_packets(testbed.node)
    for verb in ("fetch", "deliver"):
        with connect(testbed.pod, *target(testbed, way, backend, family), timeout=20) as opened:
            for _ in range(2):
                assert getattr(opened, verb)(_BIG)
            port = opened.socket.getsockname()[1]
        for node in nodes_of(testbed, backend):
            wait(
                lambda node=node, port=port: (
                    _states(testbed, node, family, port)  # type: ignore[misc]
                    <= {"TIME_WAIT", "CLOSE"}
                ),
                "netfilter has seen the end",
            )
    assert invalid(testbed) == before
    assert fast_packets(testbed.node) >= fast


def test_a_connection_that_the_policy_refuses_stays_refused(testbed: Testbed) -> None:
    """Of either family, directly and through the Service, to both nodes, all at once."""
    before = fast_packets(testbed.node)

    def refused(to: tuple[str, int]) -> bool:
        try:
            connect(testbed.lab.pods[1], *to, timeout=0.3)
        except TimeoutError:
            return True
        return False

    ways = itertools.product(("to the pod itself", "through a Service"), (0, 2), FAMILIES)
    asked = [target(testbed, *way) for way in ways]
    with ThreadPoolExecutor(len(asked)) as threads:
        assert all(threads.map(refused, asked))
    assert fast_packets(testbed.node) == before


@pytest.mark.slow
@WAYS
@BACKENDS
def test_a_rule_that_drops_a_fast_connection_stops_it(
    testbed: Testbed, backend: int, opened: OpenConnection
) -> None:
    """In the next turn at the latest. When it is gone, the connection goes on."""
    node = nodes_of(testbed, backend)[-1]
    chain = ["inet", "guard", "first"]
    opened.socket.settimeout(0.5)
    node.run(["nft", "add", "rule", *chain, "drop"])
    try:
        wait(lambda: not _echoes(opened), "the connection is stopped", 10)
        # One direction may have stopped before the other one, whose segment is sent again.
        before = [fast_packets(node)]

        def stays() -> bool:
            assert not _echoes(opened)
            before.append(fast_packets(node))
            return before[-1] == before[-2]

        wait(stays, "no packet is fast any more", 5)
    finally:
        node.run(["nft", "flush", "chain", *chain])
    opened.socket.settimeout(20)
    assert opened._some(1)


def _echoes(opened: OpenConnection) -> bool:
    try:
        return opened.echo(b"?")
    except TimeoutError:
        return False


@pytest.mark.slow
@WAYS
@BACKENDS
def test_a_connection_that_conntrack_forgets_has_to_be_accepted_again(
    testbed: Testbed, family: int, opened: OpenConnection
) -> None:
    """A policy engine removes the entry when a policy has changed."""
    node, allowed = testbed.node, ["inet", "guard", f"allowed{family}"]
    element = f"{{ {testbed.pod.address(family)} }}"
    forget(node, testbed.pod, family)
    wait(
        lambda: opened.echo(b"accepted still") and bool(tracked(node, testbed.pod, family)),
        "netfilter has an entry again",
    )
    node.run(["nft", "delete", "element", *allowed, element])
    try:
        assert opened.echo(b"established")
        forget(node, testbed.pod, family)
        opened.socket.settimeout(0.5)
        wait(lambda: not _echoes(opened), "the connection is refused", 10)
        before = fast_packets(node)
        assert not _echoes(opened)
        assert fast_packets(node) == before
    finally:
        node.run(["nft", "add", "element", *allowed, element])
    opened.socket.settimeout(20)
    assert opened._some(1)


@contextmanager
def of_all_ways(
    testbed: Testbed, nodes: Sequence[LabNode]
) -> Iterator[list[tuple[int, OpenConnection]]]:
    """Connect to a pod of the other node in all ways: family and connection, fast on ``nodes``."""
    with ExitStack() as stack:
        ways = itertools.product(("to the pod itself", "through a Service"), (2,), FAMILIES)
        made = [
            (
                way[2],
                stack.enter_context(connect(testbed.pod, *target(testbed, *way), timeout=10)),
            )
            for way in ways
        ]
        for _, opened in made:
            opened.who()
            become_fast(opened, *nodes)
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_connections_stay_fast_while_no_agent_runs_and_with_the_next_one(
    testbed: Testbed, end: str
) -> None:
    cluster, node = testbed.cluster, testbed.node
    with of_all_ways(testbed, [testbed.node]) as made:
        (cluster.kill if end == "killed" else cluster.stop)(node)
        for _, opened in made:
            become_fast(opened, node)
        cluster.start(node)
        for _, opened in made:
            become_fast(opened, node)
    with of_all_ways(testbed, [testbed.node]):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "auto"])
def test_another_mode_and_back_cut_nothing(testbed: Testbed, mode: str) -> None:
    """With ``auto`` the policy leaves the same level, and all stays fast."""
    cluster, node, before = testbed.cluster, testbed.node, invalid(testbed)
    with of_all_ways(testbed, [testbed.node]) as made:
        cluster.stop(node)
        cluster.start(node, options=("--fast-path", mode))
        fast = fast_packets(node)
        for _, opened in made:
            if mode == "auto":
                become_fast(opened, node)
            else:
                assert all(opened.echo(b"by the stack") for _ in range(100))
        assert mode == "auto" or fast_packets(node) == fast
        cluster.stop(node)
        cluster.start(node)
        for _, opened in made:
            become_fast(opened, node)
    assert invalid(testbed) == before


@pytest.mark.slow
def test_netfilter_keeps_silent_connections_as_long_as_any_other(testbed: Testbed) -> None:
    """Though it has not seen all of their data acknowledged, which shortens that to 300 s."""

    def seconds_kept(family: int, port: int) -> list[int]:
        return [
            int(line.split()[2])
            for node in nodes_of(testbed, 2)
            for line in tracked(node, testbed.pod, family)
            if f"sport={port} " in line
        ]

    with of_all_ways(testbed, testbed.lab.nodes) as made:
        ports = [(family, opened.socket.getsockname()[1]) for family, opened in made]

        def are_kept() -> bool:
            time.sleep(0.5)  # each look lists all connections of two nodes, four times
            kept = [seconds_kept(*port) for port in ports]
            return all(len(seconds) == 2 and min(seconds) > 3600 for seconds in kept)

        for _, opened in made:
            assert all(opened.echo(b"question" * 100) for _ in range(500))
        wait(are_kept, "their entries stay for hours", 90)
        assert all(opened.echo(b"not forgotten") for _, opened in made)


@pytest.mark.slow
def test_datagrams_are_fast_once_both_sides_have_sent_some(testbed: Testbed) -> None:
    """Of either family, directly and through the Service, to both nodes, all at once."""
    ways = list(itertools.product(("to the pod itself", "through a Service"), (1, 2), FAMILIES))
    kinds = {4: socket.AF_INET, 6: socket.AF_INET6}
    with ExitStack() as stack:
        asked = []
        for way in ways:
            made = testbed.pod.socket(kinds[way[2]], socket.SOCK_DGRAM)
            asked.append((stack.enter_context(made), nodes_of(testbed, way[1])))
            made.settimeout(5)
            made.connect(target(testbed, *way))

        def is_fast(made: socket.socket, nodes: list[LabNode]) -> bool:
            before = [fast_packets(node) for node in nodes]
            for _ in range(50):
                made.send(b"echo are we fast?")
                assert made.recv(1 << 10) == b"echo are we fast?"
            return all(
                fast_packets(node) - old >= 50 for node, old in zip(nodes, before, strict=True)
            )

        def are_fast() -> bool:
            looks = [is_fast(*of_way) for of_way in asked]
            return all(looks)

        wait(are_fast, "the datagrams are fast", 30)
        for node, family in itertools.product(nodes_of(testbed, 2), FAMILIES):
            entries = tracked(node, testbed.pod, family, "udp")
            assert any("[ASSURED]" in line for line in entries)
    assert re.search(
        "for established connections", testbed.cluster.command(testbed.node, "status").stdout
    )


@pytest.mark.slow
def test_cleanup_cuts_no_connection_between_pods(family: int) -> None:
    with established(layout="routed", cni_masquerade=True) as testbed:
        to = target(testbed, "to the pod itself", 2, family)
        with connect(testbed.pod, *to, timeout=10) as opened:
            opened.who()
            become_fast(opened, *testbed.lab.nodes)
            for node in testbed.lab.nodes:
                testbed.cluster.stop(node)
                assert testbed.cluster.command(node, "cleanup").returncode == 0
                assert opened.echo(b"by the stack")
            port = opened.socket.getsockname()[1]
        for node in testbed.lab.nodes:
            wait(
                lambda node=node: _states(testbed, node, family, port) <= {"TIME_WAIT", "CLOSE"},  # type: ignore[misc]
                "netfilter has seen the end",
            )
        assert invalid(testbed) == 0
        testbed.cluster.start()
