"""The table of annotations: each line is read, and Services without any cost nothing."""

from __future__ import annotations

import pytest

from bpfsvc.model import Service
from bpfsvc.services.scheduling.annotations import (
    ANNOTATIONS,
    USUAL_SCHEDULING,
    Annotation,
    Need,
    Scheduling,
)
from bpfsvc.services.scheduling.in_force import Schedulings
from tests.services.cluster import KEY
from tests.services.objects import endpoint_slice, service

SAMPLES = {
    "scheduler": "rr",
    "weights": "node/a=2",
    "on-removal": "reset",
    "drain-seconds": "7",
    "slow-start-seconds": "7",
    "quarantine": "5 failures/10s for 30s",
    "zone-overload": "1.5",
}
"""A text for each annotation, of another value than the default."""

NEEDS = {"quarantine": Need.OUTCOMES, "zone-overload": Need.COUNTS}


def read(thing: Service) -> Scheduling:
    return Schedulings().read(KEY, thing, [endpoint_slice("10.0.0.1 here")], 0)


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
