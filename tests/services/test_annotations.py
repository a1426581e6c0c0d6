"""The table of annotations: each line is read, and Services without any cost nothing."""

from __future__ import annotations

import pytest

from bpfsvc.model import Service
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import (
    ANNOTATIONS,
    USUAL_SCHEDULING,
    Annotation,
    Need,
    Scheduling,
    read_scheduling,
)
from bpfsvc.services.scheduling.in_force import Schedulings
from tests.services.cluster import KEY
from tests.services.objects import CONFIG, NODE, endpoint_slice, service

SAMPLES = {
    "scheduler": "rr",
    "weights": "node/a=2",
    "on-removal": "reset",
    "drain-seconds": "7",
    "slow-start-seconds": "7",
    "quarantine": "5 failures/10s for 30s",
    "zone-overload": "1.5",
    "max-connections-per-backend": "7",
}
"""A text for each annotation, of another value than the default."""

NEEDS = {
    "quarantine": Need.OUTCOMES,
    "zone-overload": Need.COUNTS,
    "max-connections-per-backend": Need.COUNTS,
}


def read(thing: Service) -> Scheduling:
    return Schedulings().read(KEY, thing, [endpoint_slice("10.0.0.1 here")], 0)


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("schedular", ["annotation bpfsvc.io/schedular is unknown; did you mean scheduler?"]),
        ("on_removal", ["annotation bpfsvc.io/on_removal is unknown; did you mean on-removal?"]),
        ("socket-lb", []),
        ("of-a-later-version", []),
    ],
)
def test_a_mistyped_annotation_is_a_fault(name: str, faults: list[str]) -> None:
    thing = service(annotations={f"bpfsvc.io/{name}": "off"})
    schedulings = Schedulings()
    scheduling = schedulings.read(KEY, thing, [endpoint_slice("10.0.0.1 here")], 0)
    assert scheduling == USUAL_SCHEDULING
    assert schedulings.fault(KEY) == "; ".join(faults)


def test_a_service_without_annotations_shares_one_scheduling() -> None:
    """Ten thousand have none: none of them is remembered, or placed by weights."""
    assert read(service()) is USUAL_SCHEDULING
    others = {"bpfsvc.io/socket-lb": "off", "example.com/weights": "node/a=2"}
    assert read(service(annotations=others)) is USUAL_SCHEDULING


def test_every_annotation_has_a_sample() -> None:
    assert [annotation.name for annotation in ANNOTATIONS] == [*SAMPLES]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=lambda annotation: annotation.name)
def test_an_annotation_alone_sets_its_own_field(annotation: Annotation) -> None:
    text = SAMPLES[annotation.name]
    scheduling = read(service(annotations={f"bpfsvc.io/{annotation.name}": text}))
    value = getattr(scheduling, annotation.field)
    assert value == annotation.parse(text) != annotation.default
    assert scheduling == USUAL_SCHEDULING._replace(**{annotation.field: value})
    assert scheduling.needs == NEEDS.get(annotation.name, Need.NOTHING)


def limited(text: str) -> Service:
    return service(
        annotations={"bpfsvc.io/max-connections-per-backend": text},
        type="NodePort",
        ports=[{"name": "http", "port": 80, "nodePort": 30080}],
    )


def test_every_frontend_has_the_limit_and_its_backends_are_counted() -> None:
    thing, pods = limited("65535"), [endpoint_slice("10.0.0.1 here", "10.0.0.2 there")]
    scheduling, faults = read_scheduling(thing, pods)
    assert not faults
    ((_, entries),) = evaluate(thing, pods, NODE, CONFIG, scheduling).entries.items()
    written = [
        (policies.limit, policies.counted)
        for frontend, policies in entries.frontends.items()
        if frontend.port
    ]
    assert written == [(65535, True)] * 2, "the cluster IP and the node port"
    assert "candidates" in entries.extra


@pytest.mark.parametrize("text", ["0", "-1", "+1", "1.5", "many", "65536", ""])
def test_a_limit_that_cannot_be_used_leaves_the_last_good_one(text: str) -> None:
    good, _ = read_scheduling(limited("7"), [])
    scheduling, faults = read_scheduling(limited(text), [], good)
    assert scheduling.max_connections_per_backend == 7
    assert faults == [
        "annotation bpfsvc.io/max-connections-per-backend: the limit must be 1 to 65535, not"
        f" {text!r}; the last good value stays in force"
    ]
