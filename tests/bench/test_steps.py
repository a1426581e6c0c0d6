"""Steps that fail, come too late, or are interrupted, and modes that took too long before."""

from __future__ import annotations

import pytest

from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.devtools.bench.baselines import TooSlow
from bpfsvc.devtools.bench.results import Results
from bpfsvc.devtools.bench.steps import Report, SlowModes, Step, take


def _take_too_long(slow: SlowModes, services: int) -> None:
    with pytest.raises(TooSlow), slow.watch("nftables", services):
        raise TooSlow("too slow")


def test_a_mode_is_not_tried_again_where_a_cluster_as_small_took_too_long() -> None:
    """The note names the smallest that did."""
    slow = SlowModes()
    _take_too_long(slow, 10_000)
    with (
        pytest.raises(BpfsvcError, match=r"^not tried: 10,000 Services took too long already$"),
        slow.watch("nftables", 10_000),
    ):
        raise AssertionError("it is tried")
    tried = []
    for mode, services in (("nftables", 1), ("nftables", 9_999), ("iptables", 10_000)):
        with slow.watch(mode, services):
            tried.append((mode, services))
    assert len(tried) == 3
    _take_too_long(slow, 1000)
    with pytest.raises(BpfsvcError, match="1,000 Services"), slow.watch("nftables", 5000):
        raise AssertionError("it is tried")


class Shown:
    """Remembers what was shown."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []
        self.notes: list[str] = []

    def step(self, text: str, seconds: float) -> None:
        self.steps.append((text, seconds))

    def note(self, text: str) -> None:
        self.notes.append(text)


class Interruption:
    """Interrupts before the n-th step."""

    def __init__(self, at: int = 0) -> None:
        self._left = at

    def check(self) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def test_steps_that_fail_or_come_too_late_are_noted() -> None:
    done: list[str] = []

    def fail(_report: Report) -> None:
        raise BpfsvcError("it broke")

    steps = [
        Step("one", 1.0, lambda report: report("more")),
        Step("two", 2.0, fail),
        Step("long", 100.0, lambda _: done.append("long")),
        Step("last", 100.0, lambda _: done.append("last"), always=True),
    ]
    results, shown = Results(), Shown()
    take(steps, results, shown, Interruption(), limit=50.0)
    assert done == ["last"]
    assert results.notes == shown.notes
    assert results.notes == [
        "two: it broke",
        "left out, for the run may not take longer than 50 s: long",
    ]
    assert shown.steps[:3] == [("one", 0.0), ("one: more", 0.0), ("one", 1.0)]


def test_if_the_cleanup_after_a_failure_fails_too_the_first_error_is_reported_first() -> None:
    def fail(_report: Report) -> None:
        try:
            try:
                raise BpfsvcError("it broke")
            finally:
                raise KeyError("no matter")
        finally:
            raise OSError("it is busy")

    def fail_clearly(_report: Report) -> None:
        try:
            raise OSError("a detail")
        except OSError as error:
            raise BpfsvcError("it broke") from error

    results = Results()
    steps = [Step("one", 1.0, fail), Step("two", 1.0, fail_clearly)]
    take(steps, results, Shown(), Interruption())
    assert results.notes == ["one: it broke; and then: it is busy", "two: it broke"]


def test_a_tool_that_is_missing_ends_the_run() -> None:
    def fail(_report: Report) -> None:
        raise SystemUnfit("no such tool")

    with pytest.raises(SystemUnfit):
        take([Step("one", 1.0, fail)], Results(), Shown(), Interruption())


def test_an_interruption_that_got_lost_ends_the_run_before_the_next_step() -> None:
    done: list[str] = []
    steps = [Step("one", 1.0, lambda _: done.append("one")), Step("two", 1.0, lambda _: None)]
    with pytest.raises(KeyboardInterrupt):
        take(steps, Results(), Shown(), Interruption(2))
    assert done == ["one"]
