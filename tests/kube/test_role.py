"""The role of ``deploy/`` is what the agent asks the API server for: no more, and no less."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.apiserver.faults import Right, WatchList
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.kube.event_recorder import START, STARTING, ApiEventRecorder, node
from bpfsvc.kube.pacing import Backoff
from tests.deploy.rendered import allowed, overlay
from tests.kube.following import BRISK, Following, connection, following, put_cluster

ROLE = allowed(overlay("plain"))
FOLLOWED = sorted(right for right in ROLE if right[1] != "events")
WORKS_WITHOUT = {"pods", "servicecidrs"}
"""Annotations of pods, and drops of packets to free addresses: the rest works without."""


def name_of(right: Right) -> str:
    """Return the name of its resource as roles write it."""
    group, plural, _ = right
    return f"{plural}.{group}" if group else plural


@contextmanager
def with_role(
    api: ApiServer, role: frozenset[Right], watch_list: WatchList = "served"
) -> Iterator[Following]:
    """Follow a server whose role has these rules."""
    api.faults.role, api.faults.watch_list = role, watch_list
    put_cluster(api)
    with following(api, pacing=replace(BRISK, probe_seconds=0.1)) as seen:
        yield seen


@pytest.fixture
def events(api: ApiServer) -> Iterator[ApiEventRecorder]:
    """A recorder that counts a repeated Event at once."""
    brisk = partial(Backoff, 0.01, 0.05)
    made = ApiEventRecorder(connection(api), "here", backoff=brisk, series_reported=0.05)
    made.start()
    yield made
    made.stop()


def post_twice(api: ApiServer, events: ApiEventRecorder) -> None:
    """Post an Event and repeat it, until the server was asked for both."""
    wanted = {right for right in ROLE if right[1] == "events"}

    def asked() -> bool:
        events.post(STARTING, START, "it starts", regarding=node("here"))
        return wanted <= api.asked

    wait(asked, "an Event and its series")


@pytest.mark.parametrize("watch_list", ["served", "recorded"])
def test_every_rule_of_the_role_is_asked_for_and_nothing_else(
    api: ApiServer, events: ApiEventRecorder, watch_list: WatchList
) -> None:
    with with_role(api, ROLE, watch_list) as seen:
        seen.wait_synced(api)
        seen.wait_watching(api)
        post_twice(api, events)
        # A watch that breaks is begun again, after a question how far the server is.
        api.cut_watches()
        wait(lambda: api.asked >= ROLE, f"all rules are asked for: not {ROLE - api.asked}")
        seen.wait_watching(api)
    assert api.asked == ROLE
    assert {request.status for request in api.requests} & {401, 403, 404, 405} == set()


@pytest.mark.parametrize("right", FOLLOWED, ids=[f"{name_of(r)} {r[2]}" for r in FOLLOWED])
def test_a_rule_that_is_taken_away_is_named(
    api: ApiServer, caplog: pytest.LogCaptureFixture, right: Right
) -> None:
    """All other resources are followed; without one that is needed the agent is not ready."""
    words = f"the role of bpfsvc needs the verbs list and watch for {name_of(right)}"
    watch_list: WatchList = "served" if right[2] == "watch" else "recorded"
    with caplog.at_level(logging.INFO), with_role(api, ROLE - {right}, watch_list) as seen:
        wait(lambda: words in caplog.text, "the log names the rule")
        own = right[1] if right[1] != "nodes" else "node"

        def others() -> dict[str, bool]:
            states = seen.source.connections()
            return {name: state.connected for name, state in states.items() if name != own}

        wait(lambda: all(others().values()), f"the others are followed: {others()}")
    assert "Traceback" not in caplog.text
    (line, *more) = [record for record in caplog.records if words in record.getMessage()]
    assert ("continuing without" in line.getMessage()) == (right[1] in WORKS_WITHOUT)
    assert not more


@pytest.mark.parametrize("verb", ["create", "patch"])
def test_a_rule_about_events_that_is_taken_away_is_named_once(
    api: ApiServer, events: ApiEventRecorder, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    api.faults.role = ROLE - {("events.k8s.io", "events", verb)}
    words = "the role of bpfsvc needs the verbs create and patch for events.events.k8s.io"

    def is_named() -> bool:
        events.post(STARTING, START, "it starts", regarding=node("here"))
        return words in caplog.text

    wait(is_named, "the log names the rule")
    assert caplog.text.count(words) == 1
