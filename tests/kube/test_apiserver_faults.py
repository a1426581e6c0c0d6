"""After any fault of the server or the network, the source has the server's objects."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.kube.pacing import Backoff, Pacing
from tests.kube.faults import (
    FAULTS,
    asked,
    away,
    busy,
    change,
    cut,
    cut_inside,
    in_trouble,
    lists,
    lost_and_forgotten,
    questions,
)
from tests.kube.following import BRISK, RESOURCES, following, held, node, put_cluster, service

IMPATIENT = replace(BRISK, idle_seconds=0.3, list_idle_seconds=0.3)
"""For faults that only a timeout shows."""


@pytest.mark.parametrize("watch_list", ["served", "recorded", "invalid"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.replace("_", " "))
def test_the_source_is_complete_after(
    api: ApiServer, fault: Callable[[ApiServer], None], watch_list: str
) -> None:
    """The fault is over, and nothing is missing, old or left over."""
    api.faults.watch_list = watch_list  # type: ignore[assignment]
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        fault(api)
        seen.wait_synced(api)
        seen.wait_connected()
        api.put(service("last"))
        seen.wait_synced(api)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.replace("_", " "))
def test_a_source_started_during(api: ApiServer, fault: Callable[[ApiServer], None]) -> None:
    """A source that starts during the fault sends everything at once when it is over."""
    put_cluster(api)
    api.faults.answer(503, 2)
    with following(api, pacing=replace(BRISK, probe_seconds=0.1)) as seen:
        fault(api)
        seen.wait_synced(api)
        assert seen.batches[0].complete
        assert {"Service", "EndpointSlice"} <= seen.batches[0].listed.keys()


@pytest.mark.parametrize("fault", [cut, cut_inside, away, busy, in_trouble])
def test_a_broken_watch_resumes_without_a_list(
    api: ApiServer, fault: Callable[[ApiServer], None]
) -> None:
    """Lists are expensive for a server that has just come back; the last version avoids them."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        seen.wait_watching(api)
        before = lists(api)
        fault(api)
        seen.wait_synced(api)
        seen.wait_connected()
        assert lists(api) == before


def test_each_lost_watch_makes_a_single_question(api: ApiServer) -> None:
    """For a list of one object, which the server has in its cache."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        seen.wait_watching(api)
        known = api.store.version
        api.cut_watches()
        wait(lambda: len({ask.path for ask in questions(api)}) == RESOURCES, "the questions")
        seen.wait_watching(api)
        assert len(questions(api)) == RESOURCES
        for ask in questions(api):
            assert ask.query["resourceVersionMatch"] == "NotOlderThan"
            assert int(ask.query["resourceVersion"]) <= known


def test_after_a_deleted_version_a_list_at_least_as_new_is_read(api: ApiServer) -> None:
    """The list after a 410 may come out of the server's cache, but not from an older one."""
    put_cluster(api)
    api.faults.watch_list = "invalid"
    with following(api) as seen:
        seen.wait_synced(api)
        seen.wait_watching(api)
        known = api.store.resource_version
        api.forget_requests()
        lost_and_forgotten(api)
        seen.wait_synced(api)
        *_, query = (
            request.query
            for request in api.requests
            if request.path == "/api/v1/services" and "watch" not in request.query
        )
        assert query["resourceVersionMatch"] == "NotOlderThan"
        assert 0 < int(query["resourceVersion"]) <= int(known)
        assert "limit" not in query


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_server_that_was_restored_from_a_backup_is_followed(
    api: ApiServer, is_silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Its versions are behind what is known; the watch breaks, or is half-open and silent."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    put_cluster(api, services=10)
    with following(api, pacing=IMPATIENT if is_silent else BRISK) as seen:
        seen.wait_synced(api)
        seen.wait_watching(api)
        api.faults.silent, api.faults.hang = is_silent, True
        if not is_silent:
            api.cut_watches()
            wait(lambda: not api.watches, "the end of the watches")
        restore(api, services=1)
        api.faults.hang = False
        wait(lambda: len({ask.path for ask in questions(api)}) == RESOURCES, "questions")
        api.faults.silent = False
        seen.wait_synced(api)
        api.put(service("last"))
        seen.wait_synced(api)
    assert not [text for text in caplog.messages if "no change was missed" in text]
    assert sum("restored from a backup" in text for text in caplog.messages) == 1


def restore(api: ApiServer, services: int) -> None:
    """Make another, smaller cluster the present one, at a lower version than before."""
    with api.store.lock:
        before = api.store.version
        api.store.clear()
        api.store.version = 5
        put_cluster(api, services=services)
        api.compact()
        assert api.store.version < before


def test_pages_that_grow_old_are_read_again(api: ApiServer) -> None:
    """A list that expires between two pages is started again, in one piece."""
    put_cluster(api)
    for number in range(1200):
        api.put(service(f"many-{number:04}"))
    api.faults.watch_list = "invalid"
    api.faults.latency = 0.02
    pages = 0

    def forget() -> bool:
        nonlocal pages
        seen = sum("continue" in request.query for request in api.requests)
        if seen > pages and pages < 2:
            pages = seen
            api.put(service("meanwhile"))
            api.compact()
        return bool(following_it.objects) and following_it.objects == held(api)

    # Only an exact list has pages, and that is what follows when all else was refused.
    api.faults.answer(410, 2, path="/api/v1/services")
    with following(api) as following_it:
        wait(forget, "the objects")
        assert pages
        refused = [
            request
            for request in api.requests
            if "continue" in request.query and request.status == 410
        ]
        assert refused
        assert any(
            "limit" not in request.query and "watch" not in request.query
            for request in api.requests
            if request.path == "/api/v1/services" and request.moment > refused[0].moment
        )


def test_pages_make_one_batch(api: ApiServer) -> None:
    """However many pages a list has, it is one batch."""
    put_cluster(api)
    for number in range(1200):
        api.put(service(f"many-{number:04}"))
    api.faults.watch_list = "invalid"
    api.faults.answer(410, 2, path="/api/v1/services")
    with following(api) as seen:
        seen.wait_synced(api)
        assert sum("continue" in request.query for request in api.requests) >= 2
        assert len(seen.batches[0].listed["Service"]) == 1203


def test_watches_without_data_are_given_up(api: ApiServer) -> None:
    """Half-open connections look open for ever; without bookmarks they count as dead."""
    put_cluster(api)
    with following(api, pacing=IMPATIENT) as seen:
        seen.wait_synced(api)
        api.faults.silent = True
        change(api)
        mark = api.requests[-1].moment
        wait(lambda: api.requests[-1].moment > mark, "another attempt")
        api.faults.silent = False
        seen.wait_synced(api)


def test_bookmarks_keep_a_quiet_watch_alive(api: ApiServer) -> None:
    """A cluster in which nothing happens is no dead one, and its versions stay fresh."""
    put_cluster(api)
    api.faults.bookmark_period = 0.05
    with following(api, pacing=IMPATIENT) as seen:
        seen.wait_synced(api)
        seen.wait_watching(api)
        before, watch = len(asked(api)), api.watches[0]
        api.put(node("elsewhere"))
        api.compact()
        api.put(node("elsewhere"))
        moment = seen.source.connections()["services"].last_data
        wait(lambda: seen.source.connections()["services"].last_data > moment + 0.6, "bookmarks")
        assert len(asked(api)) == before
        assert watch in api.watches
        known = lists(api)
        api.cut_watches()
        change(api)
        seen.wait_synced(api)
        assert lists(api) == known, "a bookmark had brought the version after the compaction"


def test_a_quiet_watch_without_bookmarks_is_opened_again_and_no_error(
    api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A server sends none for a resource that has not changed since the server's start."""
    caplog.set_level(logging.INFO, logger="bpfsvc")
    put_cluster(api)
    api.faults.bookmark_period = 1000.0
    pacing = replace(IMPATIENT, idle_seconds=0.6, list_idle_seconds=30.0)
    with following(api, pacing=pacing) as seen:
        seen.wait_synced(api)
        wait(lambda: seen.source.connections()["servicecidrs"].watches > 3, "other watches")
        change(api)
        seen.wait_synced(api)
        assert {state.errors for state in seen.source.connections().values()} == {0}
        assert not caplog.messages


def test_a_server_that_hangs_is_given_up(api: ApiServer) -> None:
    """Requests that are never answered end, are counted, and are made again."""
    put_cluster(api)
    with following(api, pacing=IMPATIENT) as seen:
        seen.wait_synced(api)
        api.faults.hang = True
        api.cut_watches()
        change(api)
        wait(lambda: not seen.source.connections()["services"].connected, "the loss")
        assert "no answer in time" in seen.source.connections()["services"].error
        api.faults.hang = False
        seen.wait_synced(api)


def test_the_planned_end_of_a_watch_is_no_error(api: ApiServer) -> None:
    """The end that was planned is no trouble: the next watch follows at once."""
    put_cluster(api)
    with following(api, pacing=replace(BRISK, watch_seconds=(1.0, 1.0))) as seen:
        seen.wait_synced(api)
        count = seen.source.connections()["services"].watches
        wait(lambda: seen.source.connections()["services"].watches > count + 1, "other watches")
        change(api)
        seen.wait_synced(api)
        assert seen.source.connections()["services"].errors == 0
        assert not questions(api), "nothing was lost"


def test_a_server_that_sends_retry_after_gets_no_request_before(api: ApiServer) -> None:
    """429 with Retry-After: nothing is asked of it before that time is over."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        api.faults.answer(429, 1, path="/api/v1/services", retry_after=1)
        api.cut_watches()
        change(api)
        seen.wait_synced(api)
        asked = [request for request in api.requests if request.path == "/api/v1/services"]
        (refused,) = (number for number, request in enumerate(asked) if request.status == 429)
        assert asked[refused + 1].moment - asked[refused].moment >= 1.0


def test_a_watch_list_without_an_end_is_no_watch_list(api: ApiServer) -> None:
    """A server that takes the words for another watch never marks the end; then it is listed."""
    put_cluster(api)
    api.faults.cut_after = 1
    with following(api) as seen:
        seen.wait_synced(api)
        assert any("limit" in request.query for request in api.requests)


def test_a_refused_watch_list_is_remembered(api: ApiServer) -> None:
    """What a server does not have is not asked for at every list."""
    put_cluster(api)
    api.faults.watch_list = "recorded"
    with following(api) as seen:
        seen.wait_synced(api)
        lost_and_forgotten(api)
        seen.wait_synced(api)
        asked = [request.path for request in api.requests if "sendInitialEvents" in request.query]
        assert len(asked) == len(set(asked)) == RESOURCES


def test_nodes_do_not_come_back_together(api: ApiServer) -> None:
    """After a cut, the attempts of the resources are spread over the time of the first wait."""
    put_cluster(api)
    with following(api, pacing=Pacing(backoff=partial(Backoff, 0.4, 0.4))) as seen:
        seen.wait_synced(api)
        moments = set()
        for _ in range(3):
            seen.wait_watching(api)
            api.forget_requests()
            api.cut_watches()
            wait(lambda: len(questions(api)) >= 4, "attempts")
            first = min(request.moment for request in questions(api))
            moments |= {round(request.moment - first, 2) for request in questions(api)}
        assert len(moments) > 4
        assert max(moments) > 0.05
