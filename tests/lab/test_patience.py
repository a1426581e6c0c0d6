"""How often a condition is checked while it does not hold: by a clock of the test."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bpfsvc.devtools.lab.patience import wait


class Clock:
    """A clock that goes on only in pauses."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


@pytest.mark.parametrize(
    ("after", "options", "pauses", "late"),
    [
        pytest.param(0.02, {}, 11, 0.003, id="what holds soon is seen at once"),
        pytest.param(1.0, {}, 90, 0.06, id="what holds after a second is not asked all the time"),
        pytest.param(30.0, {}, 700, 0.06, id="what holds late is not seen late"),
        pytest.param(
            1.0, {"longest_pause": 0.002}, 501, 0.003, id="what is measured is always asked often"
        ),
    ],
)
def test_the_pauses(
    clock: Clock, after: float, options: dict[str, Any], pauses: int, late: float
) -> None:
    began = clock.now
    wait(lambda: clock.now >= began + after, "the end", 60.0, **options)
    assert clock.now - began < after + late
    assert clock.pauses <= pauses


def test_the_time_limit_is_named(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BPFSVC_LAB_PATIENCE", "3")
    began = clock.now
    with pytest.raises(TimeoutError, match=r"^the end: not within 6 s$"):
        wait(lambda: False, "the end", 2.0)
    assert 6.0 < clock.now - began < 6.1
