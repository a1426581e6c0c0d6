"""Warnings that become Events: about what, and never a storm of them."""

from __future__ import annotations

import logging

import pytest

from bpfsvc.agent.reports import Reports
from bpfsvc.base.address import pack
from bpfsvc.base.errors import MapFull
from bpfsvc.http.healthz import Health
from bpfsvc.kube.event_recorder import NullEventRecorder, Type
from bpfsvc.kube.source import ParseError
from bpfsvc.model import ObjectKey
from bpfsvc.services.faults import BAD_SCHEDULER, Fault
from bpfsvc.services.scheduling.quarantine import Change, Rule, Step

FULL = MapFull("map frontends is full (16 entries)", "enlarge it with --max-frontends")
FULL_TEXT = "map frontends is full (16 entries) (enlarge it with --max-frontends)"


class Recorder(NullEventRecorder):
    """Keeps what would be posted."""

    def __init__(self) -> None:
        self.objects: list[tuple[str, ...]] = []
        self.node: list[tuple[str, str, bool]] = []

    def object_failed(self, kind: str, namespace: str, name: str, reason: str, note: str) -> None:
        """Keep it."""
        self.objects.append((kind, namespace, name, reason, note))

    def service_noted(self, namespace: str, name: str, reason: str, note: str, kind: Type) -> None:
        """Keep it."""
        self.objects.append((kind, namespace, name, reason, note))

    def node_failed(self, reason: str, note: str, *, one_series: bool = False) -> None:
        """Keep it."""
        self.node.append((reason, note, one_series))


def broken(number: int) -> ParseError:
    name = f"web-{number}"
    key = ObjectKey("EndpointSlice", "shop", name)
    return ParseError(f"EndpointSlice shop/{name}", 0, "'x' is not an address", key)


def test_a_service_without_room_gets_an_event_and_so_does_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    Reports(recorder, Health()).without_room({("shop", "web"): FULL})
    note = f"not up to date in the kernel of a node: {FULL_TEXT}"
    assert recorder.objects == [("Service", "shop", "web", "MapFull", note)]
    assert recorder.node == [
        ("MapFull", f"Services are not up to date in the kernel: {FULL_TEXT}", False)
    ]
    assert caplog.messages == [f"Service shop/web is not up to date in the kernel: {FULL_TEXT}"]


def test_a_thousand_services_without_room_are_no_storm() -> None:
    recorder = Recorder()
    Reports(recorder, Health()).without_room(
        {("shop", f"web-{number}"): FULL for number in range(1000)}
    )
    assert len(recorder.objects) == 10
    assert len(recorder.node) == 1


def test_an_object_that_cannot_be_used_gets_an_event() -> None:
    recorder = Recorder()
    Reports(recorder, Health()).unusable([broken(1), ParseError("a.yaml", 3, "malformed YAML")])
    note = "cannot be used: 'x' is not an address"
    assert recorder.objects == [("EndpointSlice", "shop", "web-1", "UnusableObject", note)]
    assert recorder.node == []


def test_of_many_objects_that_cannot_be_used_the_node_says_how_many() -> None:
    recorder = Recorder()
    Reports(recorder, Health()).unusable([broken(number) for number in range(1, 1001)])
    assert len(recorder.objects) == 10
    assert recorder.node == [
        (
            "UnusableObject",
            "1000 objects cannot be used: EndpointSlice shop/web-1, EndpointSlice shop/web-2,"
            " EndpointSlice shop/web-3 and 997 more",
            True,
        )
    ]


def test_nothing_new_is_no_event() -> None:
    recorder = Recorder()
    reports = Reports(recorder, Health())
    reports.unusable([])
    reports.without_room({})
    assert (recorder.objects, recorder.node) == ([], [])


def test_of_many_faults_the_first_get_events_and_all_are_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder()
    faults = [Fault(("shop", f"web-{number}"), BAD_SCHEDULER, "bad") for number in range(1000)]
    Reports(recorder, Health()).faults(faults, {})
    assert recorder.objects[0] == ("Service", "shop", "web-0", "BadScheduler", "bad")
    assert len(recorder.objects) == 10
    assert len(caplog.messages) == 1000


def test_a_quarantine_is_an_event_when_it_begins_and_ends_and_a_line_for_each_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    recorder = Recorder()
    rule, address = Rule(5, 10, 30), (pack("10.244.1.5"), 8080)
    failures = {Step.AWAY: 7, Step.AWAY_AGAIN: 1}
    steps = (Step.AWAY, Step.TRIAL, Step.AWAY_AGAIN, Step.TRIAL, Step.BACK)
    for step in steps:
        change = Change(("shop", "web"), address, step, rule, failures.get(step, 0))
        Reports(recorder, Health()).quarantine([change])
    away = "it gets no new connections for 30 s"
    began = f"7 attempts to connect to endpoint 10.244.1.5:8080 failed within 10 s: {away}"
    trial = "endpoint 10.244.1.5:8080 is on trial: the next connection to it decides"
    back = "endpoint 10.244.1.5:8080 is back: a connection to it was established"
    again = f"1 attempt to connect to endpoint 10.244.1.5:8080 failed in its trial: {away}"
    assert caplog.messages == [
        f"Service shop/web: {text}" for text in (began, trial, again, trial, back)
    ]
    assert recorder.objects == [
        ("Warning", "shop", "web", "EndpointQuarantined", began),
        ("Normal", "shop", "web", "EndpointBack", back),
    ]


def test_many_endpoints_in_quarantine_at_once_are_no_storm() -> None:
    recorder = Recorder()
    address = (pack("10.244.1.5"), 8080)
    changes = [
        Change(("shop", f"web-{number}"), address, Step.AWAY, Rule(1, 1, 1), 1)
        for number in range(1000)
    ]
    Reports(recorder, Health()).quarantine(changes)
    assert len(recorder.objects) == 10
