"""What the log and the metrics say about the connections to the server."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.kube import decoding
from bpfsvc.kube.connection_status import ConnectionStatus
from bpfsvc.kube.deltas import Update
from bpfsvc.kube.errors import InvalidResponse, Refused
from bpfsvc.kube.object_tracker import ObjectTracker
from bpfsvc.kube.resources import SERVICE_CIDRS, SERVICES
from tests.kube.faults import change
from tests.kube.following import following, put_cluster, service


def test_an_outage_is_logged_in_two_lines(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    """One line at the loss, with the reason, one when it is back; none per attempt."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        seen.wait_connected()
        assert not caplog.messages
        api.go_away()
        wait(
            lambda: all(state.errors > 4 for state in seen.source.connections().values()),
            "several attempts",
        )
        (lost,) = caplog.messages
        assert "Connection refused" in lost
        assert not seen.source.connections()["services"].connected
        api.come_back()
        seen.wait_connected()
        wait(lambda: len(caplog.messages) == 2, "the other line")
        assert "again after" in caplog.messages[1]


def test_a_missing_permission_is_logged_once(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the verbs and the resource of the role; the attempts go on."""
    put_cluster(api)
    api.faults.answer(403, 10**6, path="endpointslices")
    with following(api) as seen:
        wait(lambda: seen.source.connections()["endpointslices"].errors > 4, "several attempts")
        (line,) = (message for message in caplog.messages if "forbidden" in message)
        assert "list and watch for endpointslices.discovery.k8s.io" in line
        api.faults.clear_answers()
        seen.wait_synced(api)


def test_errors_in_the_stream_are_logged_now_and_then(
    api: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage and errors in a watch that is open lead to a list, and to one line in the log."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    put_cluster(api)
    right = decoding.event
    wrong = iter([InvalidResponse("no event"), Refused(500, "an ERROR"), InvalidResponse("again")])

    def event(line: bytes) -> decoding.Event:
        error = None if b"BOOKMARK" in line else next(wrong, None)
        if error:
            raise error
        return right(line)

    with following(api) as seen:
        seen.wait_synced(api)
        monkeypatch.setattr(decoding, "event", event)
        for number in range(4):
            api.put(service(f"more-{number}"))
            seen.wait_synced(api)
        seen.wait_connected()
        assert next(wrong, None) is None
        (line,) = caplog.messages
        assert "the watch of services broke" in line
        assert "no event" in line


def test_an_optional_resource_that_fails_alone_is_logged(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, once it works again; what is counted can be found in the log."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    put_cluster(api)
    api.faults.answer(500, 3, path="servicecidrs")
    with following(api) as seen:
        seen.wait_synced(api)
        wait(lambda: seen.source.connections()["servicecidrs"].connected, "the networks")
        assert seen.source.connections()["servicecidrs"].errors
        (line,) = caplog.messages
        assert "no data of servicecidrs" in line
        assert "etcdserver: request timed out" in line


def test_an_optional_resource_that_goes_on_failing_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After some seconds, in which the whole server could have turned out to be away."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    now = [0.0]
    status = ConnectionStatus("server", [SERVICES, SERVICE_CIDRS], clock=lambda: now[0])
    for name in ("services", "servicecidrs"):
        status.watching(name)
    for _ in range(30):
        now[0] += 1.0
        status.failed("servicecidrs", "in trouble")
    assert [
        message for message in caplog.messages if "no data of servicecidrs: in trouble" in message
    ]
    assert len(caplog.messages) == 1
    status.watching("servicecidrs")
    for _ in range(3):
        now[0] += 1.0
        status.ended_early("services", "cut")
        status.watching("services")
    now[0] += 1000.0
    status.ended_early("services", "cut again")
    status.watching("services")
    assert len(caplog.messages) == 3
    assert "broke: cut;" in caplog.messages[1]
    assert "broke 3 times, at last: cut again;" in caplog.messages[2]


def test_a_bug_does_not_end_the_thread(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that dies would leave the node with old Services for ever; it starts again."""
    put_cluster(api)
    broken = iter([True, True])
    right = ObjectTracker.change

    def wrong(*arguments: Any) -> Update | None:
        if next(broken, False):
            raise ZeroDivisionError("a mistake")
        return right(*arguments)

    with following(api) as seen:
        seen.wait_synced(api)
        monkeypatch.setattr(ObjectTracker, "change", wrong)
        change(api)
        seen.wait_synced(api)
        assert any("starts again with a list" in message for message in caplog.messages)
