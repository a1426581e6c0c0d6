"""The agent's side of ``bpfsvc observe`` without a kernel: readers, samples, and known names."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from bpfsvc.agent.history.failures import FailureHistory
from bpfsvc.agent.observe import stream
from bpfsvc.agent.observe.elsewhere import DropCounter, DropsElsewhere
from bpfsvc.agent.observe.kernel import Asked
from bpfsvc.agent.observe.known_names import near_names
from bpfsvc.agent.observe.readers import Reader, Wish
from bpfsvc.agent.observe.sampling import Sample
from bpfsvc.agent.observe.stream import EventStream
from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.loader import kernel_types
from bpfsvc.datapath.loader.kernel_types import DropTypes
from bpfsvc.devtools.lab.objects import endpoint, endpoint_slice, service
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.http.server import Request
from bpfsvc.metrics.observer import Observer
from bpfsvc.model import EndpointSlice
from bpfsvc.model.events import Event, decode_event
from bpfsvc.model.reading import read_object
from bpfsvc.services.cache import Cache

LINE = b'{"time":1.0,"kind":"made"}' + b" " * 1000 + b"\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """The agent's end and the command's end of a connection."""
    agent, command = socket.socketpair()
    with agent, command:
        yield agent, command


def received(command: socket.socket) -> bytes:
    command.setblocking(False)
    parts = []
    while True:
        try:
            parts.append(command.recv(1 << 20))
        except BlockingIOError:
            return b"".join(parts)


def test_a_slow_reader_loses_events_and_is_told_how_many(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    agent, command = ends
    reader = Reader(agent, Wish(), "node-1")
    for _ in range(5000):
        reader.put(LINE)
        reader.send()
    assert not reader.is_gone
    whole = b""
    while part := received(command):
        whole += part
        reader.send()
    events = [decode_event(line) for line in whole.splitlines()]
    lost = [event for event in events if event.lost]
    assert [event.lost_by for event in lost] == ["reader"]
    assert len(events) - 1 + lost[0].lost == 5000
    assert lost[0].lost > 1000


def test_a_reader_that_leaves_is_noticed(ends: tuple[socket.socket, socket.socket]) -> None:
    agent, command = ends
    reader = Reader(agent, Wish(), "node-1")
    reader.send()
    assert not reader.is_gone
    command.close()
    reader.send()
    assert reader.is_gone


def test_a_reader_that_does_not_follow_ends_when_it_has_all(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    agent, command = ends
    reader = Reader(agent, Wish(follow=False), "node-1")
    reader.put(LINE)
    reader.send()
    assert reader.is_gone
    assert received(command) == LINE


def test_a_command_is_told_why_when_the_thread_that_reads_events_has_ended(
    monkeypatch: pytest.MonkeyPatch, cache: Cache, tmp_path: Path
) -> None:
    """By whatever error: a command that waited for events would wait for ever."""
    monkeypatch.setattr(stream, "Pinned", {}.__getitem__)
    told: list[str] = []
    counter = DropCounter(Observer(), told.append, is_wanted=False)
    history = FailureHistory(None, 0)
    made = EventStream(lambda: tmp_path, cache, "node-1", history, counter, told.append)
    made.start()
    wait(lambda: bool(told), "the end of the thread")
    answer = made.routes()["/observe"](Request("/observe", {}))
    assert answer.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert b"the kernel's events cannot be read: KeyError" in answer.body
    assert "bpfsvc observe shows nothing" in told[0]


class Kernel:
    """Programs that tell of the events that are put here."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.reads = 0

    def ask(self, _: Asked) -> None:
        """The programs tell of everything that is put here."""

    def skip(self) -> None:
        self.events.clear()

    def lost(self) -> int:
        return 0

    def read(self, _: int) -> Iterator[Event]:
        while self.events:
            yield self.events.popleft()
        self.reads += 1

    def close(self) -> None:
        """Nothing is open."""


def test_a_reader_follows_the_events_from_now_on(
    monkeypatch: pytest.MonkeyPatch, cache: Cache, ends: tuple[socket.socket, socket.socket]
) -> None:
    """Without a reader the ring is read once a second: it may hold an event from before."""
    kernel = Kernel()
    monkeypatch.setattr(stream, "Pinned", lambda _: None)
    monkeypatch.setattr(stream, "KernelEvents", lambda *_: kernel)
    counter = DropCounter(Observer(), print, is_wanted=False)
    made = EventStream(Path, cache, "node-1", FailureHistory(None, 0), counter, print)
    made.start()
    wait(lambda: kernel.reads > 0, "the first look")
    kernel.events.append(Event(1.0, "node-1", "ended"))
    agent, command = ends
    answer = made.routes()["/observe"](Request("/observe", {}))
    assert answer.stream
    answer.stream(agent)
    since = kernel.reads
    wait(lambda: kernel.reads > since, "the agent has looked")
    kernel.events.append(Event(2.0, "node-1", "made"))
    assert decode_event(command.recv(4096)).kind == "made"
    made.stop()


def test_a_sample_follows_the_number_of_events() -> None:
    sample = Sample()
    assert not sample.adapt(900, 1000)
    assert sample.mask == 0
    assert sample.adapt(7000, 1000)
    assert sample.mask == 7  # one of 8: 875 a second
    assert not sample.adapt(875, 1000)
    assert sample.adapt(100, 1000)
    assert sample.mask == 3


@pytest.fixture
def cache() -> Cache:
    """Two Services in two namespaces, with pods."""
    made = Cache("node-1")
    for namespace, name, pods in (
        ("shop", "web", ("web-7b5c-x2abc", "web-7b5c-k9def")),
        ("prod", "dns", ("dns-0", "")),
    ):
        points = [
            {
                **endpoint(f"10.0.{len(namespace)}.{number}", "node-2"),
                **({"targetRef": {"kind": "Pod", "name": pod}} if pod else {}),
            }
            for number, pod in enumerate(pods, 1)
        ]
        made.apply(read_object(service(name, namespace=namespace)), ())
        made.apply(read_object(endpoint_slice(name, points, namespace=namespace)), ())
    return made


def test_the_names_of_pods_are_those_of_the_slice(cache: Cache) -> None:
    names = [part.pod_names() for known in cache.all_known() for part in known.slices]
    assert names == [["web-7b5c-x2abc", "web-7b5c-k9def"], ["dns-0", ""]]


def test_an_endpoint_that_is_no_pod_has_no_name() -> None:
    point = endpoint("10.0.0.1") | {"targetRef": {"kind": "Node", "name": "node-1"}}
    (part,) = read_object(endpoint_slice("web", [point]))
    assert isinstance(part, EndpointSlice)
    assert part.pod_names() == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("namespace", "shop"),
        ("service", "shop/web"),
        ("service", "web"),
        ("pod", "prod/dns-0"),
        ("pod", "web-7b5c"),
        ("node", "node-1"),
        ("node", "node-2"),
    ],
)
def test_a_known_name_is_known(cache: Cache, kind: str, name: str) -> None:
    assert near_names(cache, kind, name) is None


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [
        ("namespace", "shob", ["shop"]),
        ("service", "shop/wep", ["shop/web"]),
        ("service", "dnss", ["prod/dns"]),
        ("pod", "dns-1", ["prod/dns-0"]),
        ("node", "node-3", ["node-2", "node-1"]),
        ("node", "xyz", []),
    ],
)
def test_near_names_are_those_that_are_alike(
    cache: Cache, kind: str, name: str, near: list[str]
) -> None:
    assert near_names(cache, kind, name) == near


@pytest.mark.parametrize(
    ("types", "missing"),
    [
        (None, "reasons of dropped packets (Linux 5.17)"),
        (DropTypes(1, 2, 3, {}), "reasons of dropped packets (Linux 5.17)"),
    ],
    ids=["no types", "no reasons"],
)
def test_a_kernel_that_tells_no_reasons_is_refused_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, types: DropTypes | None, missing: str
) -> None:
    monkeypatch.setattr(kernel_types, "drop_types", lambda: types)
    monkeypatch.setattr(kernel_types, "missing_for_drops", lambda: missing)
    drops = DropsElsewhere(lambda: tmp_path)
    for _ in range(2):
        with pytest.raises(KernelError) as refusal:
            drops.enter()
        assert str(refusal.value) == f"drops elsewhere cannot be told: this node lacks {missing}"


def test_a_node_without_the_program_is_refused_with_the_capability(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel_types, "drop_types", lambda: DropTypes(1, 2, 3, {1: "X"}))
    with pytest.raises(KernelError, match="lacks CAP_PERFMON of the agent"):
        DropsElsewhere(lambda: tmp_path).enter()


def test_reasons_of_subsystems_have_their_numbers(tmp_path: Path) -> None:
    assert DropsElsewhere(lambda: tmp_path).reason(65537) == "SKB_DROP_REASON_65537"
