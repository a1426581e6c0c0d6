"""Waiting times are random, grow, stay bounded, and are forgotten."""

from __future__ import annotations

import pytest

from bpfsvc.kube.pacing import LONGEST, SHORTEST, Backoff


class Clock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
def test_bounds_double_up_to_the_longest(chance: float) -> None:
    """Each wait is a share of a bound that doubles with every failure, and ends at the longest."""
    backoff = Backoff(clock=Clock(), chance=lambda: chance)
    bounds = [min(LONGEST, SHORTEST * 2**number) for number in range(10)]
    assert [backoff.next() for _ in bounds] == [chance * bound for bound in bounds]


def test_failures_are_forgotten_after_a_minute_without_any() -> None:
    """A minute after the last wait was over, the next failure counts as the first."""
    clock = Clock()
    backoff = Backoff(clock=clock, chance=lambda: 1.0)
    for _ in range(10):
        backoff.next()
    clock.now += LONGEST + 59
    assert backoff.next() == LONGEST
    clock.now += LONGEST + 61
    assert backoff.next() == SHORTEST


def test_retry_after_is_added_to_the_wait() -> None:
    """Nodes that must all wait the same time still come back at different times."""
    backoff = Backoff(clock=Clock(), chance=lambda: 0.5)
    assert backoff.next(7.0) == 7.0 + SHORTEST / 2


def test_a_thousand_nodes_come_back_spread_out() -> None:
    """After a long outage no second sees more than some of a thousand nodes."""
    seconds = []
    for _ in range(1000):
        backoff = Backoff(clock=Clock())
        for _ in range(10):
            last = backoff.next()
        seconds.append(int(last))
    assert max(seconds.count(second) for second in range(int(LONGEST))) < 100
