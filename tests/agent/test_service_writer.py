"""What is done about a full map, and what is logged of drift."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from bpfsvc.agent.reports import Reports
from bpfsvc.agent.sync import service_writer
from bpfsvc.agent.sync.service_writer import ServiceWriter
from bpfsvc.base.errors import MapFull
from bpfsvc.http.healthz import Health
from bpfsvc.services.plans.plan import Plan

FULL = MapFull("map frontends is full", "")


class Written:
    """A writer whose maps have differed in ``drift`` entries."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, drift: int = 0, reports: Reports | None = None
    ) -> None:
        self.maps, self.follower, self.metrics = Mock(), Mock(), Mock()
        self.reports: Any = reports or Mock()
        self.maps.recount.return_value = 0
        self.follower.repair.return_value = 0
        monkeypatch.setattr(service_writer, "find_drift", lambda *_: (Plan(), drift))
        self.writer = ServiceWriter(
            Mock(), self.maps, [self.follower], self.metrics, self.reports, Mock()
        )


@pytest.mark.parametrize(
    ("drift", "lines"),
    [
        (0, []),
        (1, ["repaired 1 entry that another program changed in the kernel"]),
        (3, ["repaired 3 entries that another program changed in the kernel"]),
    ],
)
def test_drift_is_one_line(
    drift: int, lines: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = Reports(Mock(), Health())
    Written(monkeypatch, drift, reports).writer.reconcile()
    assert caplog.messages == lines
    assert reports.state().repaired == drift


def test_drift_of_followers_and_of_recounted_maps_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Written(monkeypatch, 1)
    written.follower.repair.return_value = 2
    written.maps.recount.return_value = 4
    assert written.writer.repair_drift() == 7
    (_, drift), _ = written.metrics.drift_checked.call_args
    assert drift == 7


def test_a_plan_without_room_is_taken_back_before_the_planner_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = Written(monkeypatch)
    written.maps.execute.side_effect = [FULL, None]
    with pytest.raises(MapFull):
        written.writer.write(Plan())
    assert written.maps.execute.call_count == 2
    written.metrics.written.assert_not_called()


def test_drift_that_finds_no_room_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(monkeypatch, 3)
    written.maps.execute.side_effect = FULL
    assert written.writer.repair_drift() == 0
    written.reports.map_full.assert_called_once()
    written.metrics.drift_checked.assert_not_called()
