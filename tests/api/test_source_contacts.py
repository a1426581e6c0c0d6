"""What a person and the metrics are told of the contact with the server."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bpfsvc.apiserver import decoding
from bpfsvc.apiserver.objects import Books
from bpfsvc.apiserver.trouble import Garbled, Refused
from bpfsvc.apiserver.updates import Update
from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.patience import wait
from tests.api.following import following, put_cluster, service
from tests.api.mishaps import change


def test_an_outage_is_told_in_two_lines(api: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    """One line when contact is lost, with the reason, one when it is back; none per attempt."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    put_cluster(api)
    with following(api) as seen:
        seen.wait_in_step(api)
        seen.wait_connected()
        assert not caplog.messages
        api.go_away()
        wait(
            lambda: all(each.errors > 4 for each in seen.source.contacts().values()),
            "several attempts",
        )
        (lost,) = caplog.messages
        assert "Connection refused" in lost
        assert not seen.source.contacts()["services"].connected
        api.come_back()
        seen.wait_connected()
        wait(lambda: len(caplog.messages) == 2, "the other line")
        assert "again after" in caplog.messages[1]


def test_a_missing_permission_is_told_once(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names the verbs and the resource of the role; the attempts go on."""
    put_cluster(api)
    api.faults.answer(403, 10**6, path="endpointslices")
    with following(api) as seen:
        wait(lambda: seen.source.contacts()["endpointslices"].errors > 4, "several attempts")
        (line,) = (each for each in caplog.messages if "forbidden" in each)
        assert "list and watch for endpointslices.discovery.k8s.io" in line
        api.faults.clear_answers()
        seen.wait_in_step(api)


def test_an_error_in_the_stream_is_told_to_nobody(
    api: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage and errors in a watch that is open lead to a list, not to lines in the log."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    put_cluster(api)
    right = decoding.event
    wrong = iter([Garbled("no event"), Refused(500, "an ERROR"), Garbled("again")])

    def event(line: bytes) -> decoding.Event:
        error = None if b"BOOKMARK" in line else next(wrong, None)
        if error:
            raise error
        return right(line)

    with following(api) as seen:
        seen.wait_in_step(api)
        monkeypatch.setattr(decoding, "event", event)
        for number in range(4):
            api.put(service(f"more-{number}"))
            seen.wait_in_step(api)
        seen.wait_connected()
        assert next(wrong, None) is None
        assert not caplog.messages


def test_a_mistake_of_ours_ends_nothing(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that dies would leave the node with old Services for ever; it begins anew."""
    put_cluster(api)
    broken = iter([True, True])
    right = Books.change

    def wrong(*arguments: Any) -> Update | None:
        if next(broken, False):
            raise ZeroDivisionError("a mistake")
        return right(*arguments)

    with following(api) as seen:
        seen.wait_in_step(api)
        monkeypatch.setattr(Books, "change", wrong)
        change(api)
        seen.wait_in_step(api)
        assert any("begins anew" in each for each in caplog.messages)
