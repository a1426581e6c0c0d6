"""Backends that change under traffic: connections stay, new ones follow, nothing is lost.

A rollout is one change of an EndpointSlice file; it is complete when the frontend's entry in the
kernel has changed, because every change gives it a new generation.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import cycle
from typing import NamedTuple

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6

from bpfsvc.devtools.lab.dial import Protocol, ask, connect, tally
from bpfsvc.devtools.lab.load import Load
from bpfsvc.devtools.lab.objects import port, service, slices
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.testbed import SLICE_PORTS, Named, Testbed, built_testbed, host

ROLLED = Named("rolled", 50)
NUMBER = 80

_CHI_SQUARE = {1: 23.9, 2: 27.6, 3: 30.7, 4: 33.4, 5: 35.9}
"""By degrees of freedom: the chi-square that a fair choice exceeds once in a million times."""


@pytest.fixture(scope="module")
def rolling() -> Iterator[Testbed]:
    """Two nodes with three pods each, and a Service whose backends the tests choose."""
    with built_testbed(layout="routed", pods_per_node=3) as testbed:
        testbed.cluster.put(
            "service",
            service(
                ROLLED.name,
                [ROLLED.vip(4), ROLLED.vip(6)],
                [
                    port(NUMBER, "web", nodePort=ROLLED.node_port),
                    port(NUMBER, "dns", "UDP", nodePort=ROLLED.node_port),
                ],
                type="NodePort",
            ),
        )
        _write(testbed, testbed.lab.pods)
        testbed.cluster.start()
        yield testbed


def _write(testbed: Testbed, backends: list[LabPod]) -> None:
    testbed.cluster.put("slices", *slices(ROLLED.name, backends, SLICE_PORTS))


def _roll(testbed: Testbed, backends: list[LabPod]) -> None:
    """Change the backends, and wait until both nodes have the change."""
    _write(testbed, backends)
    testbed.cluster.settle()


def _unfairness(counts: Counter[str]) -> float:
    """Return chi-square against equal shares."""
    share = counts.total() / len(counts)
    return sum((count - share) ** 2 / share for count in counts.values())


@pytest.mark.parametrize("origin", ["pod", "node", "client"])
def test_new_connections_spread_uniformly(
    rolling: Testbed, origin: str, family: int, transport: Protocol
) -> None:
    """By tc and by the socket LB, over all six backends."""
    _roll(rolling, rolling.lab.pods)
    namespace = getattr(rolling, origin)
    address, number = (
        (ROLLED.vip(family), NUMBER)
        if origin != "client"
        else (rolling.node.address(family), ROLLED.node_port)
    )
    counts = tally(namespace, address, number, transport, count=600)
    assert set(counts) == {pod.name for pod in rolling.lab.pods}
    assert _unfairness(counts) < _CHI_SQUARE[len(counts) - 1]


def test_connections_keep_their_backend_while_others_are_added_and_removed(
    rolling: Testbed, family: int
) -> None:
    """Established connections survive four changes, including the removal of their backend."""
    pods = rolling.lab.pods
    _roll(rolling, pods[:3])
    with ExitStack() as stack:
        held = [
            stack.enter_context(connect(namespace, ROLLED.vip(family), NUMBER))
            for namespace in [rolling.lab.pods[1], rolling.node] * 12
        ]
        chosen = [conversation.who().pod for conversation in held]
        assert set(chosen) == {pod.name for pod in pods[:3]}
        for backends in (pods, pods[3:], pods[2:4], pods[:1]):
            _roll(rolling, backends)
            assert all(conversation.echo(b"still there?") for conversation in held)
            for namespace in (rolling.lab.pods[1], rolling.node):
                counts = tally(namespace, ROLLED.vip(family), NUMBER, count=60)
                assert set(counts) == {pod.name for pod in backends}
        assert all(conversation.echo(bytes(50_000)) for conversation in held)


def test_datagrams_get_another_backend_when_theirs_is_removed(
    rolling: Testbed, family: int
) -> None:
    """UDP has no end: a client's socket gets a new backend as soon as the old one is removed."""
    pods = rolling.lab.pods
    for namespace in (rolling.lab.pods[4], rolling.node):
        _roll(rolling, pods[:1])
        source = ("", 41000 + family)
        assert (
            ask(namespace, ROLLED.vip(family), NUMBER, "udp", source=source, connected=False).pod
            == pods[0].name
        )
        _roll(rolling, pods[1:2])
        assert (
            ask(namespace, ROLLED.vip(family), NUMBER, "udp", source=source, connected=False).pod
            == pods[1].name
        )


def _forge_fin(pod: LabPod, to: LabPod, port_of_client: int, family: int) -> None:
    """Send a FIN with arbitrary numbers from the server's port of a pod to a client."""
    ip = (IP if family == 4 else IPv6)(src=pod.address(family), dst=to.address(family))
    segment = TCP(sport=8080, dport=port_of_client, flags="FA", seq=1 << 31, ack=1 << 30)
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with pod.socket(kind, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.sendto(bytes(ip / segment)[len(ip) :], (to.address(family), 0))


def test_a_forged_fin_does_not_lead_the_next_connection_of_its_port_to_an_old_backend(
    rolling: Testbed, family: int
) -> None:
    client, *_, old, new = rolling.lab.pods
    address, source = ROLLED.vip(family), ("", 22000 + family)
    client.run(["sysctl", "-qw", "net.ipv4.tcp_tw_reuse=1"])
    _roll(rolling, [old])
    with connect(client, address, NUMBER, source=source) as opened:
        assert opened.who().pod == old.name
        _forge_fin(old, client, source[1], family)
    _roll(rolling, [new])
    answers: list[str] = []

    def answered() -> bool:
        """False while the client's kernel keeps the port in TIME_WAIT."""
        with suppress(OSError):
            answers.append(ask(client, address, NUMBER, source=source).pod)
        return bool(answers)

    wait(answered, "a new connection from the same port")
    assert answers == [new.name]


class Era(NamedTuple):
    """A set of backends, valid from the writing of its file until the next set is in the kernel."""

    names: frozenset[str]
    began: float


class Observer(threading.Thread):
    """Connects without pause and records time and pod, to find answers of wrong backends."""

    def __init__(self, testbed: Testbed) -> None:
        super().__init__()
        self.seen: list[tuple[float, float, str]] = []
        self.errors: list[OSError] = []
        self.finished = threading.Event()
        self._testbed = testbed

    def run(self) -> None:
        """Connect until ``finished`` is set."""
        while not self.finished.is_set():
            began = time.monotonic()
            try:
                answer = ask(self._testbed.pod, ROLLED.vip(4), NUMBER)
            except OSError as error:
                self.errors.append(error)
            else:
                self.seen.append((began, time.monotonic(), answer.pod))


def _roll_often(testbed: Testbed, times: int) -> list[Era]:
    """Roll through overlapping and disjoint sets; return the sets with their start times."""
    pods = testbed.lab.pods
    sets = cycle([pods[1:3], pods[3:5], pods[2:5], pods[1:2], pods[1:5], pods[4:5]])
    eras: list[Era] = []
    for _ in range(times):
        backends = next(sets)
        entry = testbed.cluster.entry(testbed.node, ROLLED.vip(4), NUMBER)
        eras.append(Era(frozenset(pod.name for pod in backends), time.monotonic()))
        _write(testbed, backends)
        testbed.cluster.await_entry(testbed.node, ROLLED.vip(4), NUMBER, other_than=entry)
    eras.append(Era(frozenset(), time.monotonic()))
    return eras


def _allowed(eras: list[Era], began: float, ended: float) -> set[str]:
    """Return the names of all sets that may have been valid between two times.

    A set may be valid from its writing until the next one is in the kernel, which happens before
    the writing of the set after that.
    """
    names: set[str] = set()
    for index, era in enumerate(eras):
        gone = eras[index + 2].began if index + 2 < len(eras) else float("inf")
        if era.began <= ended and began <= gone:
            names |= era.names
    return names


@pytest.mark.parametrize(
    "times", [pytest.param(100, id="100"), pytest.param(1000, id="1000", marks=pytest.mark.slow)]
)
def test_rollouts_under_load_lose_nothing(rolling: Testbed, times: int) -> None:
    """Rollouts at full rate: nothing is refused, lost, reset, or sent to a wrong backend.

    The first pod is the client and the sixth is never a backend; the others come and go in
    overlapping and disjoint sets. Streams that were opened before continue all the time.
    """
    pods = rolling.lab.pods
    _roll(rolling, pods[1:5])
    names = tuple(pod.name for pod in pods[1:5])
    loads = _loads(rolling, names, seconds=60 + times / 4)
    observer = Observer(rolling)
    observer.start()
    try:
        for load in loads:
            load.more(20)
        eras = [Era(frozenset(names), 0.0), *_roll_often(rolling, times)]
        for load in loads:
            load.more(20)
    finally:
        observer.finished.set()
        observer.join()
    for load in loads:
        result = load.stop()
        assert result.failures == {}, result.examples
    assert not observer.errors
    wrong = [
        (began, pod)
        for began, ended, pod in observer.seen
        if pod not in _allowed(eras, began, ended)
    ]
    assert not wrong
    assert len(observer.seen) > times


def _loads(testbed: Testbed, names: tuple[str, ...], seconds: float) -> list[Load]:
    """Full rate from a pod, and from the node's sockets, a client outside and open streams."""
    node, client = testbed.node, testbed.client
    return [
        testbed.pod.load("connect", ROLLED.vip(4), NUMBER, seconds=seconds, expected=names),
        testbed.pod.load(
            "stream",
            ROLLED.vip(6),
            NUMBER,
            seconds=seconds,
            connections=20,
            interval=0.05,
            expected=names,
        ),
        node.load("connect", ROLLED.vip(6), NUMBER, seconds=seconds, expected=names),
        client.load("connect", node.address(), ROLLED.node_port, seconds=seconds, expected=names),
    ]


def test_masqueraded_connections_survive_rollouts(rolling: Testbed, family: int) -> None:
    """An external client keeps its connection during rollouts, and stays masqueraded."""
    pods = rolling.lab.pods
    _roll(rolling, pods)
    with ExitStack() as stack:
        held = [
            stack.enter_context(
                connect(rolling.client, rolling.node.address(family), ROLLED.node_port)
            )
            for _ in range(12)
        ]
        seen = [conversation.who() for conversation in held]
        assert rolling.lab.client.address(family) not in {host(answer.peer) for answer in seen}
        _roll(rolling, pods[:1])
        assert all(conversation.echo(bytes(10_000)) for conversation in held)
