"""Events reach the server, count what repeats, and block no caller."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.kube.event_recorder import (
    FAILED_SERVICE_HEALTH,
    LISTEN,
    START,
    STARTING,
    ApiEventRecorder,
    node,
    service,
)
from bpfsvc.kube.pacing import Backoff
from tests.kube.following import connection

BRISK = partial(Backoff, 0.01, 0.05)


@pytest.fixture
def events(api: ApiServer) -> Iterator[ApiEventRecorder]:
    made = ApiEventRecorder(connection(api), "here", backoff=BRISK, series_reported=0.05)
    made.start()
    yield made
    made.stop()


def there(api: ApiServer) -> list[Any]:
    return [record.raw() for record in api.store.all("Event")]


def starting(events: ApiEventRecorder, note: str = "") -> None:
    events.post(STARTING, START, note, regarding=node("here"))


def test_an_event_about_the_node(api: ApiServer, events: ApiEventRecorder) -> None:
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


def test_an_event_about_a_service(api: ApiServer, events: ApiEventRecorder) -> None:
    """It is in the namespace of its Service, where people look for it."""
    events.post(
        FAILED_SERVICE_HEALTH, LISTEN, "no", regarding=service("shop", "web"), kind="Warning"
    )
    wait(lambda: bool(there(api)), "the event")
    (event,) = there(api)
    assert (event["metadata"]["namespace"], event["type"]) == ("shop", "Warning")
    assert event["regarding"]["uid"] == "shop/web"


def test_what_a_node_finds_out_about_a_service_is_an_event_of_its_own(
    api: ApiServer, events: ApiEventRecorder
) -> None:
    events.service_noted("shop", "web", "EndpointBack", "10.0.0.1:80 is back", "Normal")
    events.service_noted("shop", "web", "EndpointBack", "10.0.0.2:80 is back", "Normal")
    wait(lambda: len(there(api)) == 2, "both events")
    posted = {(event["reason"], event["type"], event["note"]) for event in there(api)}
    notes = ("10.0.0.1:80 is back", "10.0.0.2:80 is back")
    assert posted == {("EndpointBack", "Normal", note) for note in notes}
    assert {event["metadata"]["namespace"] for event in there(api)} == {"shop"}


def test_all_nodes_report_the_address_of_a_service_by_one_event(
    api: ApiServer, events: ApiEventRecorder
) -> None:
    events.object_failed("Service", "shop", "web", "AddressInUse", "taken")
    wait(lambda: bool(there(api)), "the event")
    other = ApiEventRecorder(connection(api), "there", backoff=BRISK)
    other.start()
    other.object_failed("Service", "shop", "web", "AddressInUse", "taken")
    other.object_failed("Service", "shop", "web", "AddressInUse", "taken by another")
    wait(lambda: len(there(api)) == 2, "another event")
    other.stop()
    assert sorted(event["note"] for event in there(api)) == ["taken", "taken by another"]
    assert {event["type"] for event in there(api)} == {"Warning"}
    assert events.dropped == other.dropped == 0


def test_an_event_about_a_slice_names_its_api_group(
    api: ApiServer, events: ApiEventRecorder
) -> None:
    events.object_failed("EndpointSlice", "shop", "web-1", "UnusableObject", "no address")
    wait(lambda: bool(there(api)), "the event")
    (event,) = there(api)
    assert event["metadata"]["namespace"] == "shop"
    assert event["regarding"]["apiVersion"] == "discovery.k8s.io/v1"
    assert event["regarding"]["kind"] == "EndpointSlice"


def test_an_object_with_the_longest_name_gets_an_event(
    api: ApiServer, events: ApiEventRecorder
) -> None:
    events.object_failed("EndpointSlice", "shop", 253 * "a", "UnusableObject", "no address")
    wait(lambda: bool(there(api)), "the event")
    (event,) = there(api)
    assert len(event["metadata"]["name"]) == 253
    assert event["regarding"]["name"] == 253 * "a"


def test_events_about_the_node_in_other_words_are_others_unless_they_are_one_series(
    api: ApiServer, events: ApiEventRecorder
) -> None:
    for note in ("map a is full", "map b is full", "map a is full"):
        events.node_failed("MapFull", note)
    for note in ("75 of 100", "80 of 100"):
        events.node_failed("MapNearlyFull", note, one_series=True)
    wait(lambda: len(there(api)) == 3, "three events")
    wait(
        lambda: sum(event.get("series", {}).get("count", 0) for event in there(api)) == 4, "counts"
    )
    assert {event["note"]: event.get("series", {}).get("count") for event in there(api)} == {
        "map a is full": 2,
        "map b is full": None,
        "75 of 100": 2,
    }
    assert {(event["type"], event["regarding"]["name"]) for event in there(api)} == {
        ("Warning", "here")
    }


def test_repeated_events_are_counted(api: ApiServer, events: ApiEventRecorder) -> None:
    """The same again is no new event; its series has the count, and the first note stays."""
    for number in range(5):
        starting(events, f"attempt {number}")
    wait(lambda: bool(there(api)) and there(api)[0].get("series", {}).get("count") == 5, "5 times")
    (event,) = there(api)
    assert event["note"] == "attempt 0"
    events.post(STARTING, START, "", regarding=node("other"))
    wait(lambda: len(there(api)) == 2, "another")


def test_a_repetition_after_a_long_time_is_new(api: ApiServer) -> None:
    """A series ends when nothing comes for a while."""
    made = ApiEventRecorder(connection(api), "here", backoff=BRISK, series_ends=0.0)
    made.start()
    starting(made)
    starting(made)
    wait(lambda: len(there(api)) == 2, "two events")
    made.stop()


def test_a_series_whose_event_expired_starts_again(
    api: ApiServer, events: ApiEventRecorder
) -> None:
    """Servers forget events after an hour; the count is not lost with them."""
    starting(events)
    wait(lambda: bool(there(api)), "the event")
    (event,) = there(api)
    api.delete("Event", "default", event["metadata"]["name"])
    starting(events)
    wait(lambda: bool(there(api)), "the event")
    assert there(api)[0]["series"]["count"] == 2


def test_events_wait_for_a_server_that_does_not_answer(
    api: ApiServer, events: ApiEventRecorder
) -> None:
    """What happened during an outage is posted afterwards."""
    api.faults.answer(503, 2)
    api.faults.answer(429, 1, retry_after=0)
    starting(events)
    wait(lambda: bool(there(api)), "the event")
    assert events.dropped == 0


def test_events_that_no_server_takes_are_dropped(api: ApiServer) -> None:
    """Posting never waits, however many there are and even if the server hangs."""
    api.faults.hang = True
    made = ApiEventRecorder(connection(api), "here", backoff=BRISK)
    made.start()
    began = time.monotonic()
    for number in range(1000):
        made.post(STARTING, START, "x" * 5000, regarding=service("shop", f"web-{number}"))
    assert time.monotonic() - began < stretched(1)
    assert made.dropped >= 900
    began = time.monotonic()
    made.stop(timeout=0.1)
    assert time.monotonic() - began < stretched(1)
    api.faults.hang = False


def test_a_missing_permission_is_logged_once(
    api: ApiServer, events: ApiEventRecorder, caplog: pytest.LogCaptureFixture
) -> None:
    """The line names what the role lacks; the events are dropped."""
    api.faults.answer(403, 3)
    for number in range(3):
        events.post(STARTING, START, "", regarding=service("shop", f"web-{number}"))
    wait(lambda: events.dropped == 3, "the refusals")
    (line,) = (
        record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING
    )
    assert "create and patch for events.events.k8s.io" in line


def test_long_notes_are_cut_between_characters(api: ApiServer, events: ApiEventRecorder) -> None:
    """The server counts bytes, and refuses half a character."""
    starting(events, "x" + "é" * 2000)
    wait(lambda: bool(there(api)), "the event")
    assert there(api)[0]["note"] == "x" + "é" * 511


def test_events_that_wait_at_the_end_are_tried_once(api: ApiServer) -> None:
    """The last events of an agent that ends are delivered if that takes little time."""
    made = ApiEventRecorder(connection(api), "here", backoff=BRISK)
    starting(made)
    starting(made)
    made.start()
    made.stop()
    assert there(api)[0]["reason"] == "Starting"
