"""Watches of the lab's API server: what they are told, in which order, and how they end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.patience import wait
from tests.api.asking import SERVICES, SLICES, Stream, ask, service, watching

RECORDINGS = Path(__file__).parent.parent / "recordings"
FOREIGN = "service.kubernetes.io/service-proxy-name"
KUBE_PROXY = {"labelSelector": f"!{FOREIGN}", "fieldSelector": "spec.clusterIP!=None"}


def test_a_watch_tells_what_happens_after_its_revision(api: ApiServer) -> None:
    """First what happened since, then what happens; a deletion tells the last object."""
    api.put(service("old"))
    since = api.store.resource_version
    api.put(service("web"))
    with watching(api, resourceVersion=since) as stream:
        assert stream.answer.getheader("Transfer-Encoding") == "chunked"
        version = int(since)
        assert stream.told() == ("ADDED", "web", str(version + 1))
        api.put(service("web", "10.96.0.7"))
        assert stream.told() == ("MODIFIED", "web", str(version + 2))
        api.delete("Service", "default", "web")
        event = stream.event()
        assert event["type"] == "DELETED"
        assert event["object"]["kind"] == "Service"
        assert event["object"]["spec"]["clusterIP"] == "10.96.0.7"
        assert event["object"]["metadata"]["resourceVersion"] == str(version + 3)


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}], ids=["none", "0"])
def test_a_watch_of_no_revision_begins_with_the_present(
    api: ApiServer, query: dict[str, str]
) -> None:
    """Synthetic ADDED events, with the objects' own versions."""
    api.put(service("a"))
    api.put(service("b"))
    with watching(api, **query) as stream:
        assert [stream.told()[:2] for _ in "ab"] == [("ADDED", "a"), ("ADDED", "b")]
        api.put(service("c"))
        assert stream.told()[:2] == ("ADDED", "c")


def test_what_stops_to_match_is_told_as_deleted_and_back_as_added(api: ApiServer) -> None:
    """As recorded: the deleted object is the last that matched, at the revision of the change."""
    since = api.store.resource_version
    with watching(api, resourceVersion=since, **KUBE_PROXY) as stream:
        api.put(service("other", **{FOREIGN: "x"}))
        api.put(service("other"))
        assert stream.told()[:2] == ("ADDED", "other")
        record = api.put(service("other", **{FOREIGN: ""}))
        event = stream.event()
        assert event["type"] == "DELETED"
        assert "labels" not in event["object"]["metadata"]
        assert event["object"]["metadata"]["resourceVersion"] == str(record.version)
        api.delete("Service", "default", "other")
        api.put(service("last"))
        assert stream.told()[:2] == ("ADDED", "last")


def test_a_watch_of_one_name_or_namespace_sees_no_other(api: ApiServer) -> None:
    """By field selector and by path."""
    node = {"apiVersion": "v1", "kind": "Node"}
    with watching(api, "/api/v1/nodes", fieldSelector="metadata.name=n2") as stream:
        for name in ("n1", "n2"):
            api.put(node | {"metadata": {"name": name}})
        assert stream.told()[:2] == ("ADDED", "n2")
    with watching(api, "/api/v1/namespaces/there/services") as stream:
        api.put(service("here"))
        api.put(service("there") | {"metadata": {"name": "there", "namespace": "there"}})
        assert stream.told()[:2] == ("ADDED", "there")


def test_bookmarks_come_with_the_revision_of_everything(api: ApiServer) -> None:
    """Another resource's change moves them on; an EndpointSlice's is as empty as Go prints it."""
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


def test_without_leave_there_are_no_bookmarks(api: ApiServer) -> None:
    """A watch that does not allow them ends without one."""
    api.faults.bookmark_period = 0.01
    version = api.store.resource_version
    with watching(api, timeoutSeconds=1, resourceVersion=version) as stream:
        assert stream.line() == b""


def test_a_watch_ends_cleanly_at_its_time_and_says_a_bookmark_before(api: ApiServer) -> None:
    """timeoutSeconds; the connection can be used again."""
    started = time.monotonic()
    version = api.store.resource_version
    with watching(
        api, timeoutSeconds=1, allowWatchBookmarks="true", resourceVersion=version
    ) as stream:
        assert stream.told()[0] == "BOOKMARK"
        assert stream.line() == b""
        assert time.monotonic() - started > 0.9
        assert not stream.answer.will_close


def test_a_watch_list_ends_its_beginning_with_a_bookmark_that_says_so(api: ApiServer) -> None:
    """The present as ADDED, the annotated bookmark, then what happens."""
    api.put(service("a"))
    api.put(service("foreign", **{FOREIGN: "x"}))
    with watching(
        api,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
        **KUBE_PROXY,
    ) as stream:
        assert stream.told()[:2] == ("ADDED", "a")
        event = stream.event()
        assert event["type"] == "BOOKMARK"
        metadata = event["object"]["metadata"]
        assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert metadata["resourceVersion"] == api.store.resource_version
        api.put(service("b"))
        assert stream.told()[:2] == ("ADDED", "b")


def test_a_watch_list_is_refused_as_recorded(api: ApiServer) -> None:
    """HTTP 200 and one ERROR event, to the very request of the recording."""
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


@pytest.mark.parametrize(
    "query",
    [{"sendInitialEvents": "true"}, {"resourceVersionMatch": "NotOlderThan"}],
    ids=str,
)
def test_half_of_the_watch_list_options_is_invalid(api: ApiServer, query: dict[str, str]) -> None:
    """sendInitialEvents and resourceVersionMatch need each other."""
    assert ask(api, SERVICES, watch="true", **query).status == 422


def test_a_forgotten_revision_is_told_in_the_stream_or_at_once(api: ApiServer) -> None:
    """The documented shape: HTTP 200 and ERROR with code 410; or HTTP 410 with the Status."""
    document = json.loads((RECORDINGS / "errors.json").read_text())
    (shape,) = (value for name, value in document.items() if "too old" in name)
    api.store.version = 206
    api.compact()
    answer = ask(api, SERVICES, watch="true", resourceVersion=2)
    assert (answer.status, json.loads(answer.data)) == (200, shape["first_line"])
    api.faults.gone_at_once = True
    answer = ask(api, SERVICES, watch="true", resourceVersion=2)
    assert (answer.status, answer.body) == (410, shape["first_line"]["object"])


def test_history_has_a_length() -> None:
    """A watch from before it is too old; from its beginning it is not."""
    with ApiServer(history=3) as api:
        api.start()
        for number in range(5):
            api.put(service(f"s{number}"))
        oldest = api.store.version - 3
        assert ask(api, SERVICES, watch="true", resourceVersion=oldest - 1).body["type"] == "ERROR"
        with watching(api, resourceVersion=oldest) as stream:
            assert stream.told()[:2] == ("ADDED", "s2")


def test_a_revision_beyond_the_present_is_waited_for(api: ApiServer) -> None:
    """As after a restore of etcd: nothing is told until the revision has passed."""
    future = api.store.version + 2
    with watching(api, resourceVersion=future) as stream:
        for name in ("a", "b", "c"):
            api.put(service(name))
        assert stream.told() == ("ADDED", "c", str(future + 1))


def test_who_leaves_is_noticed(api: ApiServer) -> None:
    """A watch whose client closes ends at once, without an event."""
    stream = Stream(api, SERVICES)
    wait(lambda: len(api.watches) == 1, "the watch")
    stream.answer.close()
    stream.close()
    wait(lambda: not api.watches and not api.connections, "the end of the watch")


def test_many_watches_are_told_the_same(api: ApiServer) -> None:
    """All of it, in the same order."""
    streams = [Stream(api, SERVICES) for _ in range(20)]
    wait(lambda: len(api.watches) == 20, "the watches")
    for number in range(50):
        api.put(service(f"s{number}"))
    for stream in streams:
        assert [stream.told()[1] for _ in range(50)] == [f"s{number}" for number in range(50)]
        stream.close()


def test_a_recording_is_told_event_by_event(api: ApiServer) -> None:
    """With kube-proxy's selectors, after each step, the events of the recording and no others."""
    places = {"Service": SERVICES, "EndpointSlice": SLICES, "Node": "/api/v1/nodes"}
    selectors = {
        "Service": KUBE_PROXY,
        "EndpointSlice": {"labelSelector": "!service.kubernetes.io/headless"},
        "Node": {"fieldSelector": "metadata.name=n1"},
    }
    steps = api.replay(RECORDINGS)
    assert next(steps).events == ()
    assert api.store.resource_version == "224"
    streams = {
        kind: Stream(api, place, resourceVersion=224, **selectors[kind])
        for kind, place in places.items()
    }
    count = 0
    for step in steps:
        for recorded in step.events:
            told = streams[recorded.object["kind"]].event()
            assert told == {"type": recorded.kind, "object": recorded.object}
            count += 1
    assert count == sum(
        len((RECORDINGS / f"{stem}.watch.jsonl").read_text().splitlines()) - 1
        for stem in ("services", "endpointslices", "nodes")
    )
    for stream in streams.values():
        stream.close()


def test_a_recording_goes_on_beside_other_objects(api: ApiServer) -> None:
    """Revisions only grow: what was put meanwhile moves a recorded event to a later one."""
    steps = api.replay(RECORDINGS)
    next(steps)
    with watching(api, resourceVersion=224) as stream:
        for number in range(10):
            api.put(service(f"s{number}"))
        event = next(steps).events[0]
        told = [stream.told() for _ in range(11)]
    assert event.version < 235
    assert [int(version) for _, _, version in told] == list(range(225, 236))


def test_initial_events_can_be_declined(api: ApiServer) -> None:
    """sendInitialEvents=false without a revision: only what happens from now on."""
    api.put(service("old"))
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan"}
    with watching(api, **query) as stream:
        api.put(service("new"))
        assert stream.told()[:2] == ("ADDED", "new")
