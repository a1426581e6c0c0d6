"""The log line of each changed Service from ``-v 2`` on: what was added and removed."""

from __future__ import annotations

import logging

import pytest

from bpfsvc.agent.sync.change_log import LOGGER, log_changes
from bpfsvc.model import ModelObject
from bpfsvc.services.plans.changes import service_changes
from bpfsvc.services.plans.plan import Plan
from tests.services.kernel import new_planner
from tests.services.objects import HTTP, endpoint_slice, service

HERE, THERE = "10.0.0.1 here", "10.0.0.2 there"


class Changes:
    """A planner whose plans are logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.planner = new_planner()
        self.caplog = caplog

    def put(self, *objects: ModelObject) -> list[str]:
        return self._sync(self.planner.cache.apply(objects, ()))

    def drop(self, gone: ModelObject) -> list[str]:
        return self._sync(self.planner.cache.apply((), [gone.key]))

    def _sync(self, touched: set[tuple[str, str]]) -> list[str]:
        self.caplog.clear()
        self.planner.sync(touched, 0, self._write)
        return self.caplog.messages

    def _write(self, plan: Plan) -> None:
        log_changes(service_changes(plan.applied, self.planner.applied_state))


@pytest.fixture
def changes(caplog: pytest.LogCaptureFixture) -> Changes:
    caplog.set_level(logging.INFO, LOGGER)
    return Changes(caplog)


def test_a_new_service_shows_its_frontends_and_then_its_endpoints(changes: Changes) -> None:
    node_port = service(type="NodePort", ports=[HTTP | {"nodePort": 30080}])
    assert changes.put(node_port) == [
        "Service default/web: added; +2 frontends [+10.96.0.1:80/TCP +nodeport:30080/TCP]"
    ]
    assert changes.put(endpoint_slice(HERE, THERE)) == [
        "Service default/web: +2 endpoints [+10.0.0.1:8080 +10.0.0.2:8080]"
    ]


def test_added_and_removed_endpoints_have_a_sign(changes: Changes) -> None:
    changes.put(service(), endpoint_slice(HERE))
    assert changes.put(endpoint_slice(THERE, "10.0.0.3 there")) == [
        "Service default/web: +2 -1 endpoints [+10.0.0.2:8080 +10.0.0.3:8080 -10.0.0.1:8080]"
    ]


def test_a_deleted_service_shows_all_as_removed(changes: Changes) -> None:
    web = service()
    changes.put(web, endpoint_slice(HERE))
    assert changes.drop(web) == [
        "Service default/web: removed; -1 endpoint [-10.0.0.1:8080];"
        " -1 frontend [-10.96.0.1:80/TCP]"
    ]


def test_a_change_of_policy_alone_is_named(changes: Changes) -> None:
    changes.put(service(), endpoint_slice(HERE))
    assert changes.put(service(sessionAffinity="ClientIP")) == [
        "Service default/web: policies changed"
    ]


def test_nothing_is_logged_when_nothing_changes(changes: Changes) -> None:
    changes.put(service(), endpoint_slice(HERE))
    assert changes.put(endpoint_slice(HERE, "10.0.0.9 here unready")) == []


def test_a_line_is_cut_after_some_endpoints(changes: Changes) -> None:
    crowd = [f"10.0.{index // 250}.{index % 250} there" for index in range(1, 1001)]
    (line,) = changes.put(service(), endpoint_slice(*crowd))
    assert line.startswith("Service default/web: added; +1000 endpoints [+10.0.0.100:8080 ")
    assert " and 992 more]" in line
    assert len(line) < 300


def test_below_that_verbosity_there_are_no_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, LOGGER)
    assert Changes(caplog).put(service(), endpoint_slice(HERE)) == []
