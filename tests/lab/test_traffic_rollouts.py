"""Backends that change under traffic: connections stay, new ones follow, nothing is lost between.

A rollout is one change of an EndpointSlice file; it has arrived when the frontend's row in the
kernel is another one, for every change gives it a new generation.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from typing import NamedTuple

import pytest

from bpfsvc.lab.dial import Protocol, ask, connect, tally
from bpfsvc.lab.load import Load
from bpfsvc.lab.objects import port, service, slices
from bpfsvc.lab.pod import Pod
from tests.lab.scene import SLICE_PORTS, Named, Scene, built, host

ROLLED = Named("rolled", 50)
NUMBER = 80

_CHI_SQUARE = {1: 23.9, 2: 27.6, 3: 30.7, 4: 33.4, 5: 35.9}
"""By degrees of freedom, what a fair choice exceeds once in a million times."""


@pytest.fixture(scope="module")
def rolling() -> Iterator[Scene]:
    """Two nodes with three pods each, and a Service whose backends the tests choose."""
    with built(layout="routed", pods_per_node=3) as scene:
        scene.cluster.put(
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
        _write(scene, scene.lab.pods)
        scene.cluster.start()
        yield scene


def _write(scene: Scene, backends: list[Pod]) -> None:
    scene.cluster.put("slices", *slices(ROLLED.name, backends, SLICE_PORTS))


def _roll(scene: Scene, backends: list[Pod]) -> None:
    """Change the backends, and wait until both nodes have the change."""
    _write(scene, backends)
    scene.cluster.settle()


def _unfairness(counts: Counter[str]) -> float:
    """Give chi-square against equal shares."""
    share = counts.total() / len(counts)
    return sum((count - share) ** 2 / share for count in counts.values())


@pytest.mark.parametrize("origin", ["pod", "node", "client"])
def test_new_connections_spread_uniformly(
    rolling: Scene, origin: str, family: int, transport: Protocol
) -> None:
    """By packets and by sockets, over all six backends."""
    _roll(rolling, rolling.lab.pods)
    place = getattr(rolling, origin)
    address, number = (
        (ROLLED.vip(family), NUMBER)
        if origin != "client"
        else (rolling.node.address(family), ROLLED.node_port)
    )
    counts = tally(place, address, number, transport, count=600)
    assert set(counts) == {pod.name for pod in rolling.lab.pods}
    assert _unfairness(counts) < _CHI_SQUARE[len(counts) - 1]


def test_connections_keep_their_backend_while_others_come_and_go(
    rolling: Scene, family: int
) -> None:
    """Established connections outlive four changes, the loss of their backend's place included."""
    pods = rolling.lab.pods
    _roll(rolling, pods[:3])
    with ExitStack() as stack:
        held = [
            stack.enter_context(connect(place, ROLLED.vip(family), NUMBER))
            for place in [rolling.lab.pods[1], rolling.node] * 12
        ]
        chosen = [conversation.who().pod for conversation in held]
        assert set(chosen) == {pod.name for pod in pods[:3]}
        for backends in (pods, pods[3:], pods[2:4], pods[:1]):
            _roll(rolling, backends)
            assert all(conversation.echo(b"still there?") for conversation in held)
            for place in (rolling.lab.pods[1], rolling.node):
                counts = tally(place, ROLLED.vip(family), NUMBER, count=60)
                assert set(counts) == {pod.name for pod in backends}
        assert all(conversation.echo(bytes(50_000)) for conversation in held)


def test_datagrams_leave_a_backend_that_serves_no_more(rolling: Scene, family: int) -> None:
    """UDP has no end: a client's socket goes on with a new backend as soon as the old one left."""
    pods = rolling.lab.pods
    for place in (rolling.lab.pods[4], rolling.node):
        _roll(rolling, pods[:1])
        source = ("", 41000 + family)
        assert (
            ask(place, ROLLED.vip(family), NUMBER, "udp", source=source, connected=False).pod
            == pods[0].name
        )
        _roll(rolling, pods[1:2])
        assert (
            ask(place, ROLLED.vip(family), NUMBER, "udp", source=source, connected=False).pod
            == pods[1].name
        )


class Era(NamedTuple):
    """A set of backends, from the writing of its file to the arrival of the next."""

    names: frozenset[str]
    began: float


class Observer(threading.Thread):
    """Asks without pause who answers, and notes when: pods that were never meant to are found."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self.seen: list[tuple[float, float, str]] = []
        self.errors: list[OSError] = []
        self.enough = threading.Event()
        self._scene = scene

    def run(self) -> None:
        """Ask until told that it is enough."""
        while not self.enough.is_set():
            began = time.monotonic()
            try:
                answer = ask(self._scene.pod, ROLLED.vip(4), NUMBER)
            except OSError as error:
                self.errors.append(error)
            else:
                self.seen.append((began, time.monotonic(), answer.pod))


def _roll_often(scene: Scene, times: int) -> list[Era]:
    """Roll through overlapping and disjoint sets; give when each was in force at most."""
    pods = scene.lab.pods
    sets = cycle([pods[1:3], pods[3:5], pods[2:5], pods[1:2], pods[1:5], pods[4:5]])
    eras: list[Era] = []
    for _ in range(times):
        backends = next(sets)
        row = scene.cluster.row(scene.node, ROLLED.vip(4), NUMBER)
        eras.append(Era(frozenset(pod.name for pod in backends), time.monotonic()))
        _write(scene, backends)
        scene.cluster.arrived(scene.node, ROLLED.vip(4), NUMBER, not_row=row)
    eras.append(Era(frozenset(), time.monotonic()))
    return eras


def _allowed(eras: list[Era], began: float, ended: float) -> set[str]:
    """Give the names of all sets that may have been in force between two moments.

    A set may be in force from its writing to the arrival of the next, which is before the writing
    of the one after.
    """
    names: set[str] = set()
    for at, era in enumerate(eras):
        gone = eras[at + 2].began if at + 2 < len(eras) else float("inf")
        if era.began <= ended and began <= gone:
            names |= era.names
    return names


@pytest.mark.parametrize(
    "times", [pytest.param(100, id="100"), pytest.param(1000, id="1000", marks=pytest.mark.slow)]
)
def test_rollouts_under_load_lose_nothing(rolling: Scene, times: int) -> None:
    """Consecutive rollouts at full rate: nothing refused, lost, reset, or sent where it never was.

    The first pod asks and the sixth is never a backend; the others come and go in sets that
    overlap and sets that do not. Streams opened before go on through all of it.
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
        observer.enough.set()
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


def _loads(scene: Scene, names: tuple[str, ...], seconds: float) -> list[Load]:
    """Full rate from a pod, and from the node's sockets, a client outside and open streams."""
    node, client = scene.node, scene.client
    return [
        scene.pod.load("connect", ROLLED.vip(4), NUMBER, seconds=seconds, expected=names),
        scene.pod.load(
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


def test_masqueraded_connections_survive_rollouts(rolling: Scene, family: int) -> None:
    """A client outside keeps its connection, and its address stays hidden, whatever rolls."""
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
