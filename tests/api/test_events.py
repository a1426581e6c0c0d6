"""Events reach the server, count what repeats, and never hold anybody up."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from bpfsvc.apiserver.backoff import Backoff
from bpfsvc.apiserver.events import (
    FAILED_SERVICE_HEALTH,
    LISTEN,
    START,
    STARTING,
    Events,
    node,
    service,
)
from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.patience import wait
from tests.api.following import connection

BRISK = partial(Backoff, 0.01, 0.05)


@pytest.fixture
def events(api: ApiServer) -> Iterator[Events]:
    made = Events(connection(api), "here", backoff=BRISK, series_told=0.05)
    made.start()
    yield made
    made.stop()


def there(api: ApiServer) -> list[Any]:
    return [record.raw() for record in api.store.all("Event")]


def starting(events: Events, note: str = "") -> None:
    events.post(STARTING, START, note, regarding=node("here"))


def test_an_event_about_the_node(api: ApiServer, events: Events) -> None:
    """It has kube-proxy's words for what kube-proxy says, our name, and all the server demands."""
    starting(events, "it starts")
    wait(lambda: bool(there(api)), "the event")
    (event,) = there(api)
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("here.")
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "namespace": "",
        "name": "here",
        "uid": "here",
    }
    chosen = ("reason", "action", "type", "note", "reportingController", "reportingInstance")
    assert [event[field] for field in chosen] == [
        "Starting",
        "StartKubeProxy",
        "Normal",
        "it starts",
        "bpfsvc",
        "bpfsvc-here",
    ]
    assert "series" not in event


def test_an_event_about_a_service(api: ApiServer, events: Events) -> None:
    """It stands in the namespace of its Service, where people look for it."""
    events.post(
        FAILED_SERVICE_HEALTH, LISTEN, "no", regarding=service("shop", "web"), kind="Warning"
    )
    wait(lambda: bool(there(api)), "the event")
    (event,) = there(api)
    assert (event["metadata"]["namespace"], event["type"]) == ("shop", "Warning")
    assert event["regarding"]["uid"] == "shop/web"


def test_what_repeats_is_counted(api: ApiServer, events: Events) -> None:
    """The same again is no new event; its series tells how often, and the first note stays."""
    for number in range(5):
        starting(events, f"attempt {number}")
    wait(lambda: bool(there(api)) and there(api)[0].get("series", {}).get("count") == 5, "5 times")
    (event,) = there(api)
    assert event["note"] == "attempt 0"
    events.post(STARTING, START, "", regarding=node("other"))
    wait(lambda: len(there(api)) == 2, "another")


def test_a_repetition_after_a_long_time_is_new(api: ApiServer) -> None:
    """A series ends when nothing comes for a while."""
    made = Events(connection(api), "here", backoff=BRISK, series_ends=0.0)
    made.start()
    starting(made)
    starting(made)
    wait(lambda: len(there(api)) == 2, "two events")
    made.stop()


def test_a_series_whose_event_expired_begins_anew(api: ApiServer, events: Events) -> None:
    """Servers forget events after an hour; the count is not lost with them."""
    starting(events)
    wait(lambda: bool(there(api)), "the event")
    (event,) = there(api)
    api.delete("Event", "default", event["metadata"]["name"])
    starting(events)
    wait(lambda: bool(there(api)), "the event")
    assert there(api)[0]["series"]["count"] == 2


def test_events_wait_for_a_server_that_is_away(api: ApiServer, events: Events) -> None:
    """What happened during an outage is told afterwards."""
    api.faults.answer(503, 2)
    api.faults.answer(429, 1, retry_after=0)
    starting(events)
    wait(lambda: bool(there(api)), "the event")
    assert events.dropped == 0


def test_what_nobody_takes_is_dropped(api: ApiServer) -> None:
    """Posting never waits, however many there are and whatever the server does."""
    api.faults.hang = True
    made = Events(connection(api), "here", backoff=BRISK)
    made.start()
    began = time.monotonic()
    for number in range(1000):
        made.post(STARTING, START, "x" * 5000, regarding=service("shop", f"web-{number}"))
    assert time.monotonic() - began < 1
    assert made.dropped >= 900
    began = time.monotonic()
    made.stop(timeout=0.1)
    assert time.monotonic() - began < 1
    api.faults.hang = False


def test_a_missing_permission_is_told_once(
    api: ApiServer, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names what the role lacks; the events are dropped."""
    api.faults.answer(403, 3)
    for number in range(3):
        events.post(STARTING, START, "", regarding=service("shop", f"web-{number}"))
    wait(lambda: events.dropped == 3, "the refusals")
    (line,) = (one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
    assert "create and patch for events.events.k8s.io" in line


def test_long_notes_are_cut_between_characters(api: ApiServer, events: Events) -> None:
    """The server counts bytes, and takes no half of a character."""
    starting(events, "x" + "é" * 2000)
    wait(lambda: bool(there(api)), "the event")
    assert there(api)[0]["note"] == "x" + "é" * 511


def test_what_waits_at_the_end_is_tried_once(api: ApiServer) -> None:
    """The last words of an agent that ends are delivered if that is quickly done."""
    made = Events(connection(api), "here", backoff=BRISK)
    starting(made)
    starting(made)
    made.start()
    made.stop()
    assert there(api)[0]["reason"] == "Starting"
