"""What ``bpfsvc observe`` tells of sockets whose connect() was translated: no packet shows these.

Of a pod that its node knows (``pod``), and of the node's own processes (``node``).
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.devtools.lab.dial import OpenConnection, connect, disconnect
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait
from tests.lab.known_pods import opened
from tests.lab.node_calls import stopped_agent
from tests.lab.test_observe import ENDS, Line, Observer, observing
from tests.lab.test_quarantine import (
    REFUSE,
    SICK,
    SILENT,
    backends,
    broken,
    call,
    sick_testbed,
)
from tests.lab.testbed import EMPTY, Testbed, objects

RESET_LATER = "tcp dport 8080 tcp flags & (syn|ack) == ack counter reject with tcp reset"
SILENT_LATER = "tcp dport 8080 tcp flags & (syn|ack) == ack counter drop"
NEVER, ALWAYS = 2**32 - 1, 0
"""Masks of samples: in no sample, and in each."""
BRIEF = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)

pytestmark = pytest.mark.parametrize("where", ["pod", pytest.param("node", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with an API server; the first pod is a client, the others are backends."""
    with sick_testbed("") as testbed:
        testbed.cluster.put("empty", *objects(EMPTY, []))
        yield testbed


@pytest.fixture
def observer(running: Testbed) -> Iterator[Observer]:
    """What is told of calls of sockets to the Service."""
    with observing(running, "--path", "socket", "--service", SICK.name) as observer:
        yield observer


def told(observer: Observer, kind: str) -> Line:
    return observer.next(lambda event: event["kind"] == kind)


def next_told(observer: Observer) -> Line:
    return observer.next(lambda _: True)


def own_end(connection: OpenConnection) -> tuple[str, int]:
    address, port = connection.socket.getsockname()[:2]
    return address, port


def client_end(event: Line) -> tuple[str, int]:
    return event["client"]["address"], event["client"].get("port", 0)


def test_a_connection_is_made_answered_and_ended_by_its_client(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    began = time.monotonic()
    with call(running, where, family, patient=True) as connection:
        made, answered = next_told(observer), next_told(observer)
        own = own_end(connection)
        connection.who()
    ended = next_told(observer)
    took_ms = 1000 * (time.monotonic() - began)
    assert [event["kind"] for event in (made, answered, ended)] == ["made", "answered", "ended"]
    for event in (answered, ended):
        assert client_end(event) == own
        assert event["protocol"] == made["protocol"] == "TCP"
        assert [event[end] for end in ENDS[1:]] == [made[end] for end in ENDS[1:]]
        assert event["service"] == made["service"]
    assert made["frontend"]["address"] == SICK.vip(family)
    assert 0 < answered["took_ms"] < ended["took_ms"] < took_ms
    assert ended["reason"] == "closed"


def test_a_backend_that_refuses_is_told_once(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    one, other = backends(running)
    with broken(one, REFUSE), broken(other, REFUSE), suppress(ConnectionRefusedError):
        call(running, where, family, patient=True)
    made, refused = next_told(observer), next_told(observer)
    assert (made["kind"], refused["kind"]) == ("made", "refused")
    assert refused["reason"] == "backend_reset"
    assert refused["backend"] == made["backend"]
    with opened(running.node) as pinned:
        failures = pinned.map("backend_failures")
        counted = [int.from_bytes(key, sys.byteorder) for key, _ in failures.items()]
        assert max(counted) <= failures.max_entries, "counted for a backend, with no flag beside it"
    with call(running, where, family, patient=True):
        assert next_told(observer)["kind"] == "made"


def test_a_client_that_gives_up_was_not_answered(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    one, other = backends(running)
    with broken(one, SILENT), broken(other, SILENT), suppress(OSError):
        call(running, where, family)
    events = [next_told(observer)]
    while events[-1]["kind"] != "ended":
        events.append(next_told(observer))
    assert {event["kind"] for event in events} == {"made", "repeated", "ended"}, events
    repeated, ended = events[1], events[-1]
    assert 900 < repeated["took_ms"] < ended["took_ms"]
    assert ended["reason"] == "unanswered", events
    assert ended["backend"] == repeated["backend"]


def test_a_reset_by_the_backend_is_told_while_the_client_has_its_socket(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    one, other = backends(running)
    with call(running, where, family, patient=True) as connection:
        with broken(one, RESET_LATER), broken(other, RESET_LATER):
            # On a busy machine the last segment of the handshake is already answered by the reset.
            with suppress(ConnectionError):
                connection.socket.sendall(b"anybody?\n")
            ended = told(observer, "ended")
        assert ended["reason"] == "backend_reset"
        assert client_end(ended)[1]
    with call(running, where, family, patient=True):
        assert next_told(observer)["kind"] == "made"


def test_a_backend_that_falls_silent_is_told_when_the_kernel_gives_up(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    one, other = backends(running)
    with call(running, where, family, patient=True) as connection:
        connection.socket.setsockopt(*BRIEF)
        with broken(one, SILENT_LATER), broken(other, SILENT_LATER):
            connection.socket.sendall(b"anybody?\n")
            ended = told(observer, "ended")
        assert ended["reason"] == "given_up"


def test_a_socket_that_is_disconnected_and_connects_again_is_told_twice(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    with call(running, where, family, patient=True) as connection:
        disconnect(connection.socket)
        assert told(observer, "ended")["reason"] == "given_up"
        connection.socket.connect((SICK.vip(family), 80))
        assert [next_told(observer)["kind"] for _ in range(2)] == ["made", "answered"]
    assert next_told(observer)["reason"] == "closed"


def test_a_connection_that_was_made_before_anybody_observed_has_no_end(
    running: Testbed, where: str, family: int
) -> None:
    before = call(running, where, family, patient=True)
    with observing(running, "--path", "socket", "--service", SICK.name) as observer:
        before.close()
        with call(running, where, family, patient=True):
            assert next_told(observer)["kind"] == "made"


# -- what is not told --


def silent_call(testbed: Testbed, where: str, family: int) -> socket.socket:
    """Return a socket that waits for the answer to its SYN."""
    namespace: Namespace = getattr(testbed, where)
    made = namespace.socket(socket.AF_INET if family == 4 else socket.AF_INET6)
    made.setblocking(False)
    assert made.connect_ex((SICK.vip(family), 80)) == errno.EINPROGRESS
    return made


def retries(made: socket.socket) -> int:
    return made.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[2]


def test_a_socket_that_is_closed_while_it_connects_was_not_answered(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    first, other = backends(running)
    with broken(first, SILENT), broken(other, SILENT):
        silent_call(running, where, family).close()
        made = next_told(observer)
        ended = told(observer, "ended")
    assert (made["kind"], ended["reason"]) == ("made", "unanswered")
    assert ended["backend"] == made["backend"]


@contextmanager
def sampled(pinned: Pinned, **masks: int) -> Iterator[None]:
    """Have the programs ask for other samples: of ``connections``, of ``failures``."""
    table, record = pinned.map("observed"), pinned.layout.maps["observed"].value
    asked = table.lookup(bytes(4))
    assert asked
    table.update(bytes(4), record.pack(record.unpack(asked) | masks))
    try:
        yield
    finally:
        table.update(bytes(4), asked)


def test_a_connection_that_is_not_in_the_sample_is_not_told(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    with stopped_agent(running) as pinned, sampled(pinned, connections=NEVER):
        call(running, where, family, patient=True).close()
    assert_told_next(running, observer, where, family)


def test_refusals_have_a_sample_of_their_own(running: Testbed, where: str, family: int) -> None:
    """Two calls of the node are refused: the first is in no sample, the second in each."""
    with observing(running, "--path", "socket") as observer:
        with stopped_agent(running) as pinned:
            for failures, connections in ((NEVER, ALWAYS), (ALWAYS, NEVER)):
                with sampled(pinned, failures=failures, connections=connections):
                    with pytest.raises(ConnectionRefusedError):
                        connect(running.node, EMPTY.vip(family), 80)
                    call(running, where, family, patient=True).close()
        assert next_told(observer)["kind"] == "made"
        events = [next_told(observer) for _ in range(3)]
        rest = {event["kind"]: event.get("reason") for event in events}
        assert rest.keys() == {"answered", "ended", "refused"}
        assert rest["refused"] == "no_endpoints"
        assert_told_next(running, observer, where, family)


def assert_told_next(testbed: Testbed, observer: Observer, where: str, family: int) -> None:
    """Assert that a new connection is what is told next."""
    with call(testbed, where, family, patient=True) as connection:
        made, answered = next_told(observer), next_told(observer)
        assert (made["kind"], answered["kind"]) == ("made", "answered")
        assert client_end(answered) == own_end(connection)


def test_a_connection_that_finds_no_room_among_those_observed_is_told_only_to_be_made(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    with opened(running.node) as pinned:
        table = pinned.map("observed_sockets")
        none = bytes(table.value_size)
        keys = [struct.pack("=Q", (1 << 63) + number) for number in range(table.max_entries)]
        table.update_many((key, none) for key in keys)
        try:
            with call(running, where, family, patient=True) as connection:
                assert connection.who()
        finally:
            table.delete_many(keys)
    assert next_told(observer)["kind"] == "made"
    assert_told_next(running, observer, where, family)


def test_what_becomes_of_a_connection_of_a_former_build_is_not_told(
    running: Testbed, observer: Observer, where: str, family: int
) -> None:
    """Builds share the names of sockets, and each has its own notes of those that are observed."""
    first, other = backends(running)
    with (
        broken(first, SILENT),
        broken(other, SILENT),
        silent_call(running, where, family) as made,
        opened(running.node) as pinned,
    ):
        assert next_told(observer)["kind"] == "made"
        table = pinned.map("observed_sockets")
        table.delete_many([key for key, _ in table.items()])
        wait(lambda: retries(made) > 0, "the SYN is sent again")
    assert_told_next(running, observer, where, family)
