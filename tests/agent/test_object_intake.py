"""What is reported of objects at once: what cannot be read, and a Node that is not there."""

from __future__ import annotations

import pytest

from bpfsvc.agent.objects.intake import ObjectIntake
from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.devtools.lab import objects
from bpfsvc.http.healthz import Health
from bpfsvc.kube.event_recorder import NullEventRecorder
from bpfsvc.kube.source import Batch, ParseError
from bpfsvc.metrics.observer import Observer
from bpfsvc.model import ObjectKey, read_object
from bpfsvc.services.cache import Cache

FILE = ParseError("web.yaml", 3, "malformed YAML")
OTHER = ParseError("zoo.yaml", 1, "malformed YAML")
SERVICE = ParseError("Service default/dns", 0, "no port", ObjectKey("Service", "default", "dns"))


class Intake:
    """An intake of the node ``here``, and what /healthz says."""

    def __init__(self) -> None:
        self.health = Health()
        self.health.clear_problem("start")
        self.intake = ObjectIntake(
            Cache("here"),
            ParseErrors(),
            None,
            self.health,
            Observer(),
            Reports(NullEventRecorder(), self.health),
        )

    def apply(self, *problems: ParseError, name: str = "") -> None:
        puts = read_object(objects.node(name, ("192.0.2.1",))) if name else ()
        self.intake.apply_batch(Batch(tuple(puts), (), True, problems))

    def shown(self, field: str) -> dict[str, str]:
        texts = self.health.healthz()[1].get(field, {})
        assert isinstance(texts, dict)
        return texts


def test_a_file_that_cannot_be_read_is_a_problem_until_it_can() -> None:
    """Services that it held stay as they are, which nobody notices otherwise."""
    here = Intake()
    here.apply(OTHER, FILE)
    assert not here.health.healthz()[0]
    assert here.shown("problems") == {
        "unreadable": "cannot be read: web.yaml:3: malformed YAML and 1 more; "
        "the last good state stays in force"
    }
    here.apply()
    assert here.health.healthz()[0]


def test_an_object_of_the_api_server_that_cannot_be_read_is_a_note() -> None:
    """It is the same on every node: a problem would take load balancers from all of them."""
    here = Intake()
    here.apply(SERVICE)
    assert here.health.healthz()[0]
    assert "Service default/dns" in here.shown("notes")["unreadable"]


def test_a_node_that_the_api_server_does_not_know_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In the log and in /healthz, until it is there."""
    here = Intake()
    here.apply(name="elsewhere")
    here.intake.report_missing_node("here")
    assert not here.health.healthz()[0]
    (text,) = here.shown("problems").values()
    assert "no Node here: is this its name? --hostname-override" in text
    assert text in caplog.text
    here.apply(name="here")
    assert here.health.healthz()[0]
    here.intake.report_missing_node("here")
    assert here.health.healthz()[0]
