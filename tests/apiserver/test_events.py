"""Events (events.k8s.io/v1) that the lab's API server accepts."""

from __future__ import annotations

from typing import Any

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


def test_an_event_about_nothing_in_a_namespace_belongs_to_two_namespaces(api: ApiServer) -> None:
    """An object without a namespace: ``default`` or ``kube-system``; others are not checked."""
    url_path = PLACE.replace("default", "prod")
    about = {"metadata": {"name": "n1.17", "namespace": "prod"}}
    assert send(api, "POST", url_path, event() | about).status == 422
    other = {"kind": "Service", "namespace": "other", "name": "web"}
    assert send(api, "POST", url_path, event(regarding=other) | about).status == 201
