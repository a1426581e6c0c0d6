"""Which backends fail now: counts only grow, and a failure of last week is no failure now."""

from __future__ import annotations

import pytest

from bpfsvc.agent.flows.failure_window import BackendCounts, BackendWindow, is_failing
from bpfsvc.model.answers import BackendFailures

OLD = {1: BackendCounts(1000, 50, 0, 0)}


def failing(known: list[BackendFailures]) -> dict[int, tuple[int, int, bool]]:
    """Return by backend: refused connections, all connections, and whether it is at fault."""
    return {one.counters: (one.refused, one.connections, one.failing) for one in known}


def test_what_was_counted_before_the_agent_began_is_not_recent() -> None:
    window = BackendWindow(OLD, 0)
    assert window.update(OLD, 5) == []


def test_failures_are_compared_with_the_connections_meanwhile() -> None:
    window = BackendWindow(OLD, 0)
    assert failing(window.update({1: BackendCounts(1040, 58, 0, 0)}, 5)) == {1: (8, 40, True)}
    assert failing(window.update({1: BackendCounts(9000, 59, 0, 0)}, 10)) == {1: (9, 8000, False)}


def test_failures_are_forgotten_after_two_minutes_at_the_latest() -> None:
    window = BackendWindow(OLD, 0)
    now = {1: BackendCounts(1010, 60, 0, 0)}
    assert failing(window.update(now, 59)) == {1: (10, 10, True)}
    assert failing(window.update(now, 61)) == {1: (10, 10, True)}
    assert failing(window.update(now, 119)) == {1: (10, 10, True)}
    assert window.update(now, 122) == []
    assert 60 <= window.seconds(122) <= 120


def test_a_backend_is_judged_when_it_is_seen_again() -> None:
    """How many connections it had before its first failure is not known at first."""
    window = BackendWindow({}, 0)
    assert failing(window.update({1: BackendCounts(5000, 1, 0, 0)}, 5)) == {1: (1, 1, False)}
    assert failing(window.update({1: BackendCounts(5300, 2, 0, 0)}, 10)) == {1: (2, 300, False)}
    window = BackendWindow({}, 0)
    assert failing(window.update({1: BackendCounts(1, 1, 0, 0)}, 5)) == {1: (1, 1, False)}
    assert failing(window.update({1: BackendCounts(1, 1, 0, 0)}, 10)) == {1: (1, 1, True)}


def test_a_new_backend_is_still_known_after_the_window_has_turned() -> None:
    window = BackendWindow({}, 0)
    for at in (50, 55, 61, 66):
        known = failing(window.update({1: BackendCounts(4, 3, 0, 0)}, at))
        assert known[1][0] == 3
    assert window.update({1: BackendCounts(4, 3, 0, 0)}, 130) == []


def test_another_backend_with_the_same_counters_begins_anew() -> None:
    window = BackendWindow(OLD, 0)
    assert failing(window.update({1: BackendCounts(2, 2, 0, 0)}, 5)) == {1: (2, 2, True)}


@pytest.mark.parametrize(
    ("failed", "connections", "wanted"),
    [(1, 1, True), (1, 2, False), (2, 100, False), (3, 60, True), (3, 61, False), (9, 9, True)],
)
def test_a_lost_packet_is_no_failing_backend(failed: int, connections: int, wanted: bool) -> None:
    assert is_failing(failed, connections) is wanted
