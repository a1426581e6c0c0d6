"""Watches of the lab's API server: their events, the order, and their end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.patience import wait
from tests.kube.following import node
from tests.kube.requests import SERVICES, SLICES, Stream, ask, service, watching

RECORDINGS = Path(__file__).parent.parent / "recordings"
FOREIGN = "service.kubernetes.io/service-proxy-name"
KUBE_PROXY = {"labelSelector": f"!{FOREIGN}", "fieldSelector": "spec.clusterIP!=None"}


def test_a_watch_gets_all_events_after_its_revision(api: ApiServer) -> None:
    """First past events, then new ones; a deletion has the last object."""
    api.put(service("old"))
    since = api.store.resource_version
    api.put(service("web"))
    with watching(api, resourceVersion=since) as stream:
        assert stream.answer.getheader("Transfer-Encoding") == "chunked"
        version = int(since)
        assert stream.summary() == ("ADDED", "web", str(version + 1))
        api.put(service("web", "10.96.0.7"))
        assert stream.summary() == ("MODIFIED", "web", str(version + 2))
        api.delete("Service", "default", "web")
        event = stream.event()
        assert event["type"] == "DELETED"
        assert event["object"]["kind"] == "Service"
        assert event["object"]["spec"]["clusterIP"] == "10.96.0.7"
        assert event["object"]["metadata"]["resourceVersion"] == str(version + 3)


def test_an_object_that_no_longer_matches_is_deleted_and_later_added(api: ApiServer) -> None:
    """As recorded: the deleted object is the last that matched, at the revision of the change."""
    since = api.store.resource_version
    with watching(api, resourceVersion=since, **KUBE_PROXY) as stream:
        api.put(service("other", **{FOREIGN: "x"}))
        api.put(service("other"))
        assert stream.summary()[:2] == ("ADDED", "other")
        record = api.put(service("other", **{FOREIGN: ""}))
        event = stream.event()
        assert event["type"] == "DELETED"
        assert "labels" not in event["object"]["metadata"]
        assert event["object"]["metadata"]["resourceVersion"] == str(record.version)
        api.delete("Service", "default", "other")
        api.put(service("last"))
        assert stream.summary()[:2] == ("ADDED", "last")


def test_bookmarks_have_the_revision_of_the_whole_store(api: ApiServer) -> None:
    """Changes of other resources count; an EndpointSlice bookmark is as empty as Go prints it."""
    api.faults.bookmark_period = 0.02
    with watching(
        api, SLICES, allowWatchBookmarks="true", resourceVersion=api.store.resource_version
    ) as stream:
        api.put(service("web"))
        event = stream.event()
        while event["object"]["metadata"]["resourceVersion"] != api.store.resource_version:
            event = stream.event()
        assert event["type"] == "BOOKMARK"
        assert event["object"]["kind"] == "EndpointSlice"
        assert event["object"]["endpoints"] is None


def test_a_watch_ends_cleanly_at_its_time_after_a_bookmark(api: ApiServer) -> None:
    """The time is timeoutSeconds; the connection can be reused."""
    started = time.monotonic()
    version = api.store.resource_version
    with watching(
        api, timeoutSeconds=1, allowWatchBookmarks="true", resourceVersion=version
    ) as stream:
        api.put(node("elsewhere"))
        assert stream.summary()[0] == "BOOKMARK"
        assert stream.line() == b""
        assert time.monotonic() - started > 0.9
        assert not stream.answer.will_close


@pytest.mark.parametrize("ahead", [0, 1000])
def test_a_watch_that_knows_all_changes_gets_no_bookmark(api: ApiServer, ahead: int) -> None:
    """Nor does a watch from a version that the server has not reached."""
    version = api.store.version + ahead
    api.faults.bookmark_period = 0.02
    with watching(
        api, timeoutSeconds=1, allowWatchBookmarks="true", resourceVersion=version
    ) as stream:
        assert stream.line() == b""


def test_a_watch_list_ends_its_initial_events_with_a_marked_bookmark(api: ApiServer) -> None:
    """The present objects as ADDED, the annotated bookmark, then new events."""
    api.put(service("a"))
    api.put(service("foreign", **{FOREIGN: "x"}))
    with watching(
        api,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
        **KUBE_PROXY,
    ) as stream:
        assert stream.summary()[:2] == ("ADDED", "a")
        event = stream.event()
        assert event["type"] == "BOOKMARK"
        metadata = event["object"]["metadata"]
        assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert metadata["resourceVersion"] == api.store.resource_version
        assert "creationTimestamp" not in metadata
        api.put(service("b"))
        assert stream.summary()[:2] == ("ADDED", "b")


def test_a_watch_list_is_refused_as_recorded(api: ApiServer) -> None:
    """HTTP 200 and one ERROR event, for the recorded request."""
    lines = (RECORDINGS / "watchlist-unsupported.jsonl").read_text().splitlines()
    head, first = map(json.loads, lines)
    api.faults.watch_list = "recorded"
    answer = ask(api, head["request"])
    assert answer.status == head["status"]
    assert answer.headers["content-type"] == head["headers"]["Content-Type"]
    assert [json.loads(line) for line in answer.data.splitlines()] == [first["event"]]


@pytest.mark.parametrize(("how", "code"), [("invalid", 422), ("bad request", 400)])
def test_a_watch_list_is_refused_as_older_servers_do(api: ApiServer, how: str, code: int) -> None:
    """Before any stream begins."""
    setattr(api.faults, "watch_list", how)  # noqa: B010 (a plain assignment has a literal type)
    query = {"watch": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    assert ask(api, SERVICES, **query).status == code


def test_history_has_a_limited_length() -> None:
    """A watch from before its beginning is too old; one from its beginning works."""
    with ApiServer(history=3) as api:
        api.start()
        for number in range(5):
            api.put(service(f"s{number}"))
        oldest = api.store.version - 3
        assert ask(api, SERVICES, watch="true", resourceVersion=oldest - 1).body["type"] == "ERROR"
        with watching(api, resourceVersion=oldest) as stream:
            assert stream.summary()[:2] == ("ADDED", "s2")


def test_a_closed_client_is_noticed(api: ApiServer) -> None:
    """A watch whose client closes ends at once, without an event."""
    stream = Stream(api, SERVICES)
    wait(lambda: len(api.watches) == 1, "the watch")
    stream.answer.close()
    stream.close()
    wait(lambda: not api.watches and not api.connections, "the end of the watch")


def test_a_recording_is_sent_event_by_event(api: ApiServer) -> None:
    """With kube-proxy's selectors, after each step, the events of the recording and no others."""
    places = {"Service": SERVICES, "EndpointSlice": SLICES, "Node": "/api/v1/nodes"}
    selectors: dict[str, dict[str, Any]] = {
        "Service": KUBE_PROXY,
        "EndpointSlice": {"labelSelector": "!service.kubernetes.io/headless"},
        "Node": {"fieldSelector": "metadata.name=n1"},
    }
    steps = api.replay(RECORDINGS)
    assert next(steps).events == ()
    assert api.store.resource_version == "224"
    streams = {
        kind: Stream(api, url_path, resourceVersion=224, **selectors[kind])
        for kind, url_path in places.items()
    }
    count = 0
    for step in steps:
        for recorded in step.events:
            received = streams[recorded.object["kind"]].event()
            assert received == {"type": recorded.kind, "object": recorded.object}
            count += 1
    assert count == sum(
        len((RECORDINGS / f"{stem}.watch.jsonl").read_text().splitlines()) - 1
        for stem in ("services", "endpointslices", "nodes")
    )
    for stream in streams.values():
        stream.close()


def test_a_recording_continues_beside_other_objects(api: ApiServer) -> None:
    """Revisions only grow: objects put meanwhile move a recorded event to a later revision."""
    steps = api.replay(RECORDINGS)
    next(steps)
    with watching(api, resourceVersion=224) as stream:
        for number in range(10):
            api.put(service(f"s{number}"))
        event = next(steps).events[0]
        received = [stream.summary() for _ in range(11)]
    assert event.version < 235
    assert [int(version) for _, _, version in received] == list(range(225, 236))
