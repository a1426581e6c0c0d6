"""What ``bpfsvc observe`` tells of sockets whose connect() was translated: no packet shows these.

Of a pod that its node knows (``pod``), and of the node's own processes (``node``).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, disconnect
from tests.lab.known_pods import opened
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
from tests.lab.testbed import Testbed

RESET_LATER = "tcp dport 8080 tcp flags & (syn|ack) == ack counter reject with tcp reset"
SILENT_LATER = "tcp dport 8080 tcp flags & (syn|ack) == ack counter drop"
BRIEF = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)

pytestmark = pytest.mark.parametrize("where", ["pod", "node"])


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with an API server; the first pod is a client, the others are backends."""
    with sick_testbed("") as testbed:
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
    with call(running, where, family, patient=True) as connection:
        made, answered = next_told(observer), next_told(observer)
        own = own_end(connection)
        connection.who()
    ended = next_told(observer)
    assert [event["kind"] for event in (made, answered, ended)] == ["made", "answered", "ended"]
    for event in (answered, ended):
        assert client_end(event) == own
        assert [event[end] for end in ENDS[1:]] == [made[end] for end in ENDS[1:]]
        assert event["service"] == made["service"]
    assert made["frontend"]["address"] == SICK.vip(family)
    assert 0 < answered["took_ms"] < ended["took_ms"]
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
