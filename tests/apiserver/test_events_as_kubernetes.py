"""Events of the lab's API server, held against a real kube-apiserver, as test_as_kubernetes.py."""

from __future__ import annotations

import pytest

from tests.apiserver.pair import Pair, Query, assert_same
from tests.apiserver.test_events import MOMENT, PLACE, event

pytestmark = pytest.mark.kubernetes

MERGE = "application/merge-patch+json"
WRONG_EVENTS: list[Query] = [
    {"eventTime": None},
    {"eventTime": "yesterday"},
    {"reportingController": ""},
    {"reportingController": "a b"},
    {"reportingInstance": "x" * 129},
    {"action": ""},
    {"reason": ""},
    {"type": "Bad"},
    {"note": "x" * 1025},
    {"series": {"count": 1, "lastObservedTime": MOMENT}},
    {"series": {"count": 1}},
    {"kind": "Foo"},
    {"apiVersion": "v1"},
    {"metadata": {"namespace": "default"}},
    {"metadata": {"name": "Upper_", "namespace": "default"}},
    {"metadata": {"name": "x", "namespace": "other"}},
]


@pytest.mark.parametrize("wrong", WRONG_EVENTS, ids=lambda wrong: str(wrong)[:40])
def test_a_wrong_event_is_refused_in_the_same_way(pair: Pair, wrong: Query) -> None:
    """With the same causes."""
    assert assert_same(pair.send("POST", PLACE, event("wrong") | wrong)).status in (400, 422)


def test_an_event_is_kept_and_patched_in_the_same_way(pair: Pair) -> None:
    """What the agent's recorder does, and its conflicts."""
    series = {"series": {"count": 2, "lastObservedTime": MOMENT}}
    steps: list[tuple[str, str, Query, str]] = [
        ("POST", PLACE, event("n1.1", note="a text"), "application/json"),
        ("POST", PLACE, event("n1.1"), "application/json"),
        ("PATCH", f"{PLACE}/n1.1", series, MERGE),
        ("PATCH", f"{PLACE}/n1.1", {"series": {"count": 1}}, MERGE),
        ("PATCH", f"{PLACE}/n1.1", {"reason": "Other"}, MERGE),
        ("PATCH", f"{PLACE}/n1.1", {"note": "other"}, MERGE),
        ("PATCH", f"{PLACE}/n1.1", series, "application/json"),
        ("PATCH", f"{PLACE}/n1.2", series, MERGE),
        ("GET", f"{PLACE}/n1.1", {}, "application/json"),
        ("GET", f"{PLACE}/n1.2", {}, "application/json"),
    ]
    codes = [assert_same(pair.send(*step)).status for step in steps]
    assert codes == [201, 409, 200, 422, 422, 422, 415, 404, 200, 404]
