"""``bpfsvc observe`` beside a running agent: real sockets, and what it tells about them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from bpfsvc.agent.observe.readers import MOST_READERS
from bpfsvc.base.http_client import encode_get
from bpfsvc.base.local_socket import address_of
from bpfsvc.devtools.lab.cluster import COMMAND
from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.known_pods import make_known, opened
from tests.lab.testbed import EMPTY, ONE, WEB, Named, Testbed, built_testbed, objects

Line = Mapping[str, Any]

ENDS = ("client", "frontend", "backend")

CHOSEN = {
    chosen_by: Named(f"chosen-{number}", 80 + number)
    for number, chosen_by in enumerate(("session affinity", "wlc", "rr"))
}


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A lab whose pods are below the cgroup of their node, and known to the socket hooks."""
    with built_testbed(layout="routed", holds_pods=True) as made:
        lab, cluster = made
        cluster.put("web", *objects(WEB, lab.pods))
        cluster.put("empty", *objects(EMPTY, []))
        for one, pod in zip(ONE, lab.pods, strict=True):
            cluster.put(one.name, *objects(one, [pod]))
        cluster.start()
        make_known(made)
        yield made


def asked_for(node: LabNode) -> int:
    """Return the kinds of events that the programs of a node are asked for, as bits."""
    with opened(node) as pinned:
        record = pinned.layout.maps["observed"].value
        return int(record.unpack(pinned.map("observed").lookup(bytes(4)) or b"")["kinds"])


class Observer:
    """``bpfsvc observe -o json`` on a node."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout
        assert process.stderr
        self._output, self._errors = process.stdout, process.stderr
        self._received = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    def next(self, fits: Callable[[Line], bool]) -> Line:
        """Return the next event that fits; ``TimeoutError`` if none comes."""
        while True:
            line, ended, rest = self._received.partition(b"\n")
            if not ended:
                self._receive()
                continue
            self._received = rest
            event: Line = json.loads(line)
            if fits(event):
                return event

    def errors(self) -> str:
        """Return what the command said of errors, after its end."""
        return self._errors.read().decode()

    def _receive(self) -> None:
        if not self._selector.select(stretched(40)):
            raise TimeoutError("no such event")
        received = os.read(self._output.fileno(), 1 << 16)
        if not received:
            raise EOFError(self.errors())
        self._received += received


@contextmanager
def observing(testbed: Testbed, *words: str, on: LabNode | None = None) -> Iterator[Observer]:
    """Observe until the end of the block; the programs are asked for all kinds by then."""
    node = on or testbed.node
    process = node.popen(
        [*COMMAND, "observe", "-o", "json", *words, "--pin-root", str(node.pin_root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    observer = Observer(process)

    def is_asked() -> bool:
        if process.poll() is not None:
            raise EOFError(observer.errors())
        return asked_for(node) & 2 > 0

    try:
        wait(is_asked, "the agent asks for events", 20)
        yield observer
    finally:
        node.end(process)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()
    wait(lambda: not asked_for(node) & 2, "the agent asks for connections no more")


def of_service(name: str, kind: str) -> Callable[[Line], bool]:
    return lambda event: event.get("kind") == kind and event["service"]["name"] == name


def test_a_connection_from_outside_is_told_with_all_names(testbed: Testbed) -> None:
    one, backend = ONE[2], testbed.lab.pods[2]
    with observing(testbed) as observer:
        answer = ask(testbed.client, testbed.node.address(4), one.node_port)
        made = observer.next(of_service(one.name, "made"))
        answered = observer.next(of_service(one.name, "answered"))
    assert answer.pod == backend.name
    assert made["service"] == {"namespace": "default", "name": one.name, "port": "web"}
    assert made["client"]["address"] == str(testbed.lab.client.addresses[4])
    assert made["client"]["port"] == int(answer.own.rpartition(":")[2])
    node = testbed.node
    assert made["frontend"] == {"address": node.address(4), "port": one.node_port}
    assert made["backend"] == {
        **{"address": backend.address(4), "port": 8080},
        **{"pod": f"default/{backend.name}", "node": backend.node.name},
    }
    assert (made["node"], made["path"], made["protocol"]) == (node.name, "fast_path", "TCP")
    assert made["masquerade"]
    assert answered["client"] == made["client"]
    assert 0 < answered["took_ms"] < 1000


def test_a_call_of_a_pods_socket_is_told(testbed: Testbed, family: int) -> None:
    one, client, backend = ONE[2], testbed.pod, testbed.lab.pods[2]
    with observing(testbed, "--path", "socket") as observer:
        ask(client, one.vip(family), 80)
        made = observer.next(of_service(one.name, "made"))
    assert made["client"]["pod"] == f"default/{client.name}"
    assert made["frontend"]["address"] == one.vip(family)
    assert made["backend"]["pod"] == f"default/{backend.name}"
    assert made["path"] == "socket"
    assert "chosen_by" not in made


def test_a_call_of_the_nodes_own_socket_that_is_refused_is_told(testbed: Testbed) -> None:
    with observing(testbed, "--service", f"default/{EMPTY.name}") as observer:
        with pytest.raises(ConnectionRefusedError):
            ask(testbed.node, EMPTY.vip(4), 80)
        refused = observer.next(of_service(EMPTY.name, "refused"))
    assert (refused["reason"], refused["path"]) == ("no_endpoints", "socket")
    assert "backend" not in refused


@pytest.mark.parametrize(
    ("spec", "chosen_by"),
    [
        ({"sessionAffinity": "ClientIP"}, "session affinity"),
        ({"annotations": {"bpfsvc.io/scheduler": "wlc"}}, "wlc"),
        ({"annotations": {"bpfsvc.io/scheduler": "rr"}}, "rr"),
    ],
    ids=["affinity", "connections", "turns"],
)
@pytest.mark.parametrize("path", ["socket", "packets"])
def test_what_has_chosen_the_backend_is_told(
    testbed: Testbed, spec: Mapping[str, Any], chosen_by: str, path: str
) -> None:
    named = CHOSEN[chosen_by]
    testbed.cluster.apply(named.name, *objects(named, testbed.lab.pods[1:], **spec))
    with observing(testbed, "--service", named.name) as observer:
        if path == "socket":
            ask(testbed.node, named.vip(4), 80)
        else:
            ask(testbed.client, testbed.node.address(4), named.node_port)
        made = observer.next(of_service(named.name, "made"))
    assert made["chosen_by"] == chosen_by


def test_a_backend_that_refuses_is_told(testbed: Testbed) -> None:
    """A Service whose targetPort is wrong, asked through a NodePort."""
    wrong = ({"name": "web", "port": 9999, "protocol": "TCP"},)
    named = ONE[3]
    testbed.cluster.put(named.name, *objects(named, [testbed.lab.pods[0]], wrong))
    try:
        with observing(testbed, "--reason", "backend-reset") as observer:

            def told() -> Line:
                with pytest.raises(ConnectionRefusedError):
                    ask(testbed.client, testbed.node.address(4), named.node_port)
                return observer.next(of_service(named.name, "refused"))

            refused = told()
    finally:
        testbed.cluster.put(named.name, *objects(named, [testbed.lab.pods[3]]))
    assert refused["backend"]["port"] == 9999


def test_the_end_of_a_connection_is_told_with_its_time(testbed: Testbed) -> None:
    """Its entries are removed some seconds after both sides have closed it."""
    named = ONE[1]
    with observing(testbed, "--service", named.name) as observer:
        answer = ask(testbed.client, testbed.node.address(4), named.node_port)
        made = observer.next(of_service(named.name, "made"))
        ended = observer.next(of_service(named.name, "ended"))
    assert ended["reason"] == "closed"
    assert [ended[end] for end in ENDS] == [made[end] for end in ENDS]
    assert made["client"]["port"] == int(answer.own.rpartition(":")[2])
    assert 0 <= ended["took_ms"] < 5000


def test_failures_are_remembered_when_nobody_has_observed(testbed: Testbed) -> None:
    wait(lambda: not asked_for(testbed.node) & 2, "nobody observes")
    ask(testbed.client, testbed.node.address(4), ONE[1].node_port)
    with pytest.raises(ConnectionRefusedError):
        ask(testbed.client, testbed.node.address(4), EMPTY.node_port)

    def remembered(*words: str) -> list[Line]:
        done = testbed.cluster.command(testbed.node, "observe", "-o", "json", *words)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    wait(lambda: bool(remembered("--last", "1", "--namespace", "default")), "it is remembered")
    (last,) = remembered("--last", "1")
    assert (last["kind"], last["reason"]) == ("refused", "no_endpoints")
    assert last["frontend"]["port"] == EMPTY.node_port
    assert remembered("--since", "5m", "--until", "4m") == []
    assert remembered("--since", "5m")[-1] == last


def test_the_last_events_are_the_last_of_those_that_filters_show(testbed: Testbed) -> None:
    """And not those that are left of the last ones."""
    for family in (6, 4):
        with pytest.raises(ConnectionRefusedError):
            ask(testbed.client, testbed.node.address(family), EMPTY.node_port)
    words = ("observe", "-o", "json", "--last", "1", "--ip", testbed.node.address(6))

    def shown() -> list[Line]:
        done = testbed.cluster.command(testbed.node, *words)
        return [json.loads(line) for line in done.stdout.splitlines()]

    wait(lambda: len(shown()) == 1, "the event before the last one is shown")
    assert shown()[0]["frontend"]["address"] == testbed.node.address(6)


def test_text_names_both_ends_and_stays_within_100_columns(testbed: Testbed) -> None:
    with observing(testbed) as observer:
        ask(testbed.client, testbed.node.address(4), ONE[2].node_port)
        observer.next(of_service(ONE[2].name, "answered"))
    done = testbed.cluster.command(testbed.node, "observe", "--last", "2")
    assert (done.returncode, done.stderr) == (0, "")
    text = " ".join(done.stdout.split())
    assert f"-> default/{ONE[2].name}:web -> default/{testbed.lab.pods[2].name}:8080" in text
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


def test_a_filter_that_names_nothing_says_what_is_near(testbed: Testbed) -> None:
    done = testbed.cluster.command(testbed.node, "observe", "--service", "default/wep")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "Error: this node knows no service 'default/wep'",
        *[line for line in done.stderr.splitlines()[1:] if "near names: default/web" in line],
    ]
    assert len(done.stderr.splitlines()) == 2


def test_the_17th_reader_is_refused(testbed: Testbed) -> None:
    node = testbed.node
    with ExitStack() as readers:
        for _ in range(MOST_READERS):
            client = node.socket(socket.AF_UNIX)
            readers.enter_context(client)
            client.connect(address_of(node.pin_root))
            client.sendall(encode_get("/observe"))
            assert client.recv(12) == b"HTTP/1.1 200"
        done = testbed.cluster.command(node, "observe")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "Error: the agent tells of no events: 16 commands read events already;"
            " end one of them first\n"
        )

    def is_admitted() -> bool:
        return testbed.cluster.command(node, "observe", "--last", "1").returncode == 0

    wait(is_admitted, "there is room again")


def test_ctrl_c_ends_it_quietly(testbed: Testbed) -> None:
    with observing(testbed) as observer:
        observer.process.send_signal(signal.SIGINT)
        assert observer.process.wait(stretched(10)) == 0
        assert observer.errors() == ""


def test_a_closed_pipe_ends_it_quietly(testbed: Testbed) -> None:
    with observing(testbed) as observer:
        assert observer.process.stdout
        observer.process.stdout.close()

        def has_ended() -> bool:
            ask(testbed.client, testbed.node.address(4), ONE[1].node_port)
            return observer.process.poll() is not None

        wait(has_ended, "the command ends")
        assert observer.process.returncode == 128 + signal.SIGPIPE
        assert observer.errors() == ""


def test_without_an_agent_it_says_so(testbed: Testbed) -> None:
    done = testbed.cluster.command(testbed.node, "observe", pin_root=testbed.node.pin_root / "no")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: no agent answers on this node")
    assert len(done.stderr.splitlines()) == 2
