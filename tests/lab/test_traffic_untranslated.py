"""Connections that one node has masqueraded, on the node of their backend.

They are fast as a whole, or known to netfilter as a whole. The nodes masquerade what pods send to
others than pods, as a CNI does, so an answer that netfilter took for a beginning would break its
connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.dial import OpenConnection, ask, connect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from tests.lab.fast_path import Counts, another_program, fast
from tests.lab.testbed import ONE, Testbed

pytestmark = pytest.mark.slow

_SIZE = 8 << 20
_GUARD = "add table inet guard; add chain inet guard every"
_GUARD += " { type filter hook forward priority 0; policy accept; }"


@pytest.fixture(scope="module", params=["routed", "bridge"])
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """Pods with interfaces of their own, and pods on a bridge."""
    with fast(layout=request.param, cni_masquerade=True) as testbed:
        yield testbed


def _backends_node(testbed: Testbed) -> LabNode:
    node = testbed.lab.pods[2].node
    assert node is not testbed.node
    return node


def _to(testbed: Testbed, family: int) -> tuple[str, int]:
    """Return the NodePort of the node that does not have the backend."""
    return testbed.node.address(family), ONE[2].node_port


def test_all_packets_are_fast_on_both_nodes(testbed: Testbed, family: int) -> None:
    counts = [Counts(node, family) for node in (testbed.node, _backends_node(testbed))]
    for _ in range(5):
        ask(testbed.client, *_to(testbed, family))
        with connect(testbed.client, *_to(testbed, family)) as conversation:
            conversation.who()
            conversation.reset()
    for count in counts:
        count.all_fast(least=50)


@contextmanager
def _download(testbed: Testbed, family: int) -> Iterator[OpenConnection]:
    """Begin a download that goes on as its client reads: the server sends next."""
    with connect(testbed.client, *_to(testbed, family)) as opened:
        opened.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        opened.socket.sendall(b"send %d\n" % _SIZE)
        yield opened


def _rest(opened: OpenConnection) -> int:
    """Return how many bytes come."""
    received = 0
    while received < _SIZE and (more := opened.socket.recv(1 << 16)):
        received += len(more)
    return received


def test_a_download_goes_on_when_the_backends_node_gives_the_fast_path_up(
    testbed: Testbed, family: int
) -> None:
    """A rule appears there: netfilter is told of the connection before it meets an answer."""
    node = _backends_node(testbed)

    def used() -> bool:
        shown = testbed.cluster.command(node, "status").stdout
        return "with the fast path" in shown and "for established connections" not in shown

    wait(used, "the fast path is used")
    with _download(testbed, family) as opened:
        node.run(["nft", _GUARD])
        try:
            wait(lambda: not used(), "the stack serves all packets", 15)
            counts = Counts(node, family)
            assert _rest(opened) == _SIZE
            by_fast_path, forwarded, invalid = counts.since()
            assert (by_fast_path, invalid) == (0, 0)
            assert forwarded
        finally:
            node.run(["nft", "delete table inet guard"])
    wait(used, "the fast path is used again", 15)


def test_a_download_goes_on_when_the_agent_is_started_without_the_fast_path(
    testbed: Testbed, family: int
) -> None:
    node, cluster = _backends_node(testbed), testbed.cluster
    with _download(testbed, family) as opened:
        try:
            cluster.stop(node)
            cluster.start(node, options=["--fast-path=off"])
            counts = Counts(node, family)
            assert _rest(opened) == _SIZE
            assert (counts.since()[0], counts.since()[2]) == (0, 0)
        finally:
            cluster.stop(node)
            cluster.start(node)


def test_a_connection_stays_fast_while_the_agent_is_killed_and_started(
    testbed: Testbed, family: int
) -> None:
    node, cluster = _backends_node(testbed), testbed.cluster
    counts = Counts(node, family)
    with connect(testbed.client, *_to(testbed, family)) as conversation:
        conversation.who()
        cluster.kill(node)
        assert conversation.echo(b"no agent runs")
        cluster.start(node)
        assert conversation.echo(b"an agent runs again")
    counts.all_fast(least=8)


def test_where_there_is_no_more_room_the_stack_serves_connections(
    testbed: Testbed, family: int
) -> None:
    """Those that are fast stay so."""
    node = _backends_node(testbed)
    with connect(testbed.client, *_to(testbed, family)) as older:
        older.who()
        with _full(node):
            counts = Counts(node, family)
            assert older.echo(b"still fast")
            counts.all_fast()
            counts = Counts(node, family)
            with connect(testbed.client, *_to(testbed, family)) as newer:
                assert newer.fetch(1 << 20)
            by_fast_path, forwarded, invalid = counts.since()
            # One may be the last acknowledgement of the older connection.
            assert by_fast_path <= 1
            assert invalid == 0
            assert forwarded > 10
    counts = Counts(node, family)
    ask(testbed.client, *_to(testbed, family))
    counts.all_fast()


@contextmanager
def _full(node: LabNode) -> Iterator[None]:
    """Have a node count as many of these connections as there may be."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        counted = pinned.map("untranslated")
        before = counted.lookup(bytes(4)) or b""
        counted.update(bytes(4), struct.pack("=q", pinned.map("connections").max_entries))
        try:
            yield
        finally:
            counted.update(bytes(4), before)
    finally:
        pinned.close()


def test_a_pod_whose_interface_has_another_program_is_served_by_the_stack(
    testbed: Testbed, family: int
) -> None:
    """Its answers take the stack, so the first question does, too."""
    node, pod = _backends_node(testbed), testbed.lab.pods[2]
    with another_program(testbed, pod):
        counts = Counts(node, family)
        assert ask(testbed.client, *_to(testbed, family)).pod == pod.name
        by_fast_path, forwarded, invalid = counts.since()
        assert (by_fast_path, invalid) == (0, 0)
        assert forwarded


def test_a_host_port_and_a_node_port_reach_one_pod(testbed: Testbed, family: int) -> None:
    """Netfilter translates one of them, from ports of the masquerade range, too."""
    node, pod = _backends_node(testbed), testbed.lab.pods[2]
    target = pod.address(family) if family == 4 else f"[{pod.address(family)}]"
    rule = ["PREROUTING", "-d", node.address(family), "-p", "tcp", "--dport", "8088"]
    rule += ["-j", "DNAT", "--to-destination", f"{target}:8080"]
    tool = ["iptables" if family == 4 else "ip6tables", "-w", "-t", "nat"]
    node.run([*tool, "-A", *rule])
    try:
        for _ in range(5):
            assert ask(testbed.client, node.address(family), 8088).pod == pod.name
            assert ask(testbed.client, *_to(testbed, family)).pod == pod.name
    finally:
        node.run([*tool, "-D", *rule])
