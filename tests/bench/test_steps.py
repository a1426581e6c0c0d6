"""Steps that fail or come too late, and modes that took too long before."""

from __future__ import annotations

import io

import pytest

from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.devtools.bench.baselines import TooSlow
from bpfsvc.devtools.bench.progress import Progress
from bpfsvc.devtools.bench.results import Results
from bpfsvc.devtools.bench.run import take_steps
from bpfsvc.devtools.bench.steps import Report, SlowModes, Step


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
    for mode, services in (("nftables", 9_999), ("iptables", 10_000)):
        with slow.watch(mode, services):
            pass
    _take_too_long(slow, 1000)
    with pytest.raises(BpfsvcError, match="1,000 Services"), slow.watch("nftables", 5000):
        raise AssertionError("it is tried")


def _take(*steps: Step, limit: float = 0.0) -> tuple[Results, str]:
    """Return the results, and what was shown."""
    results, shown = Results(), io.StringIO()
    take_steps(steps, results, Progress(100, stream=shown), limit)
    return results, shown.getvalue()


def test_steps_that_fail_or_come_too_late_are_noted() -> None:
    done: list[str] = []

    def fail(_report: Report) -> None:
        raise BpfsvcError("it broke")

    results, shown = _take(
        Step("one", 1.0, lambda report: report("more")),
        Step("two", 2.0, fail),
        Step("long", 100.0, lambda _: done.append("long")),
        Step("last", 100.0, lambda _: done.append("last"), always=True),
        limit=50.0,
    )
    assert done == ["last"]
    assert results.notes == [
        "two: it broke",
        "left out, for the run may not take longer than 50 s: long",
    ]
    assert all(f"bench: {note}\n" in shown for note in results.notes)


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

    results, _ = _take(Step("one", 1.0, fail), Step("two", 1.0, fail_clearly))
    assert results.notes == ["one: it broke; and then: it is busy", "two: it broke"]


def test_a_tool_that_is_missing_ends_the_run() -> None:
    def fail(_report: Report) -> None:
        raise SystemUnfit("no such tool")

    with pytest.raises(SystemUnfit):
        _take(Step("one", 1.0, fail))
