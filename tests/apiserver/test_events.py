"""Events (events.k8s.io/v1) that the lab's API server accepts."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from tests.kube.requests import ask, send

PLACE = "/apis/events.k8s.io/v1/namespaces/default/events"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
MOMENT = "2026-11-21T10:39:16.000001Z"


def event(name: str = "n1.17", **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "default"},
        "eventTime": MOMENT,
        "reportingController": "kube-proxy",
        "reportingInstance": "kube-proxy-n1",
        "action": "StartKubeProxy",
        "reason": "Starting",
        "regarding": {"kind": "Node", "name": "n1", "uid": "n1"},
        "note": "",
        "type": "Normal",
        **more,
    }


def test_an_event_is_created_once(api: ApiServer) -> None:
    """201 with the stored object; the same name again is a conflict."""
    answer = send(api, "POST", PLACE, event())
    assert answer.status == 201
    assert answer.body["metadata"]["uid"]
    again = send(api, "POST", PLACE, event())
    assert (again.status, again.body["reason"]) == (409, "AlreadyExists")
    (stored,) = api.store.all("events")
    assert stored.raw()["reason"] == "Starting"
    assert ask(api, PLACE).names() == ["n1.17"]


def test_a_name_is_made_from_generate_name(api: ApiServer) -> None:
    """The metadata has a generateName and no name."""
    metadata = {"generateName": "n1."}
    answer = send(api, "POST", PLACE, event() | {"metadata": metadata})
    assert answer.body["metadata"]["name"].startswith("n1.")


def test_a_series_can_be_patched(api: ApiServer) -> None:
    """An event recorder counts repetitions in this way; an expired event is NotFound."""
    send(api, "POST", PLACE, event())
    series = {"series": {"count": 2, "lastObservedTime": MOMENT}}
    patch = {"apiVersion": "events.k8s.io/v1", "kind": "Event"} | series
    answer = send(api, "PATCH", PLACE + "/n1.17", patch, STRATEGIC)
    assert (answer.status, answer.body["series"]["count"]) == (200, 2)
    assert "note" not in answer.body
    missing = send(api, "PATCH", PLACE + "/n1.18", patch, STRATEGIC)
    assert (missing.status, missing.body["reason"]) == (404, "NotFound")
    kind = {"Content-Type": "application/json"}
    assert send(api, "PATCH", PLACE + "/n1.17", patch, kind).status == 415


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"eventTime": None}, "eventTime"),
        ({"reportingController": "a b"}, "reportingController"),
        ({"eventTime": "", "type": ""}, "eventTime,type"),
        ({"reportingInstance": "x" * 129}, "reportingInstance"),
        ({"action": ""}, "action"),
        ({"reason": ""}, "reason"),
        ({"type": "Bad"}, "type"),
        ({"note": "x" * 1025}, "message"),
        ({"series": {"count": 1, "lastObservedTime": MOMENT}}, "series.count"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_event_that_a_real_server_refuses_is_invalid(
    api: ApiServer, wrong: dict[str, Any], field: str
) -> None:
    """The answer is 422 and names the field; nothing is stored."""
    answer = send(api, "POST", PLACE, event(**wrong))
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")
    causes = [cause["field"] for cause in answer.body["details"]["causes"]]
    assert ",".join(causes) == field
    assert not api.store.all("events")


def test_a_patch_may_not_change_the_object_of_an_event(api: ApiServer) -> None:
    """It may change the series only."""
    send(api, "POST", PLACE, event())
    for change in ({"reason": "Other"}, {"note": "another text"}):
        assert send(api, "PATCH", PLACE + "/n1.17", change, STRATEGIC).status == 422


def test_an_event_about_nothing_in_a_namespace_belongs_to_two_namespaces(api: ApiServer) -> None:
    """An object without a namespace: ``default`` or ``kube-system``; others are not checked."""
    place = PLACE.replace("default", "prod")
    about = {"metadata": {"name": "n1.17", "namespace": "prod"}}
    assert send(api, "POST", place, event() | about).status == 422
    other = {"kind": "Service", "namespace": "other", "name": "web"}
    assert send(api, "POST", place, event(regarding=other) | about).status == 201


@pytest.mark.parametrize("body", [[], {"kind": "Event", "apiVersion": "v1"}], ids=str)
def test_an_object_that_is_no_event_is_a_bad_request(api: ApiServer, body: Any) -> None:
    """Another version, or no object at all."""
    assert send(api, "POST", PLACE, body).status == 400


def test_objects_other_than_events_cannot_be_written(api: ApiServer) -> None:
    """This server takes Events alone; objects are put by the test."""
    answer = send(api, "POST", "/api/v1/namespaces/default/services", {})
    assert (answer.status, answer.body["reason"]) == (405, "MethodNotAllowed")
