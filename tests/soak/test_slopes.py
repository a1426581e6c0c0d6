"""Slopes of samples: their size, how sure they are, and what is too much."""

from __future__ import annotations

import random

import pytest

from tests.soak.slopes import Limit, Slope, TooFew, slope

HOURS = [number / 100 for number in range(100)]


def test_a_straight_line_has_its_slope_for_sure() -> None:
    made = slope(HOURS, [5 + 3 * hour for hour in HOURS])
    assert made == pytest.approx(Slope(3, 3, 3))


def test_the_interval_of_known_figures() -> None:
    """Student's quantile for eight degrees of freedom is 2.306, and neighbours are not alike."""
    times = [float(number) for number in range(10)]
    values = [time + (0.1 if number % 2 else -0.1) for number, time in enumerate(times)]
    made = slope(times, values)
    assert made.hourly == pytest.approx(1.00606, abs=1e-4)
    assert made.high - made.hourly == pytest.approx(2.306 * 0.01212, rel=0.01)


def test_noise_around_a_constant_holds_zero_in_95_of_100_intervals() -> None:
    chance = random.Random(1)
    misses = 0
    for _ in range(400):
        made = slope(HOURS, [chance.gauss(0, 1) for _ in HOURS])
        misses += not made.low <= 0 <= made.high
    assert 4 <= misses <= 36


def test_samples_like_their_neighbours_make_the_interval_wider() -> None:
    chance = random.Random(1)
    fresh = [chance.gauss(0, 1) for _ in HOURS]
    alike = [0.0]
    for value in fresh[1:]:
        alike.append(0.9 * alike[-1] + value)
    alone, together = slope(HOURS, fresh), slope(HOURS, alike)
    assert together.high - together.low > 4 * (alone.high - alone.low)


def test_a_leak_in_noise_is_seen() -> None:
    chance = random.Random(2)
    made = slope(HOURS, [60 + 4 * hour + chance.gauss(0, 0.5) for hour in HOURS])
    assert not Limit(1, 1).allows(made, HOURS[-1])


def test_what_fills_up_once_is_no_leak() -> None:
    """In a short run the same growth is a steep slope."""
    made = Slope(hourly=40, low=38, high=42)
    assert Limit(hourly=1, once=2).allows(made, hours=0.05)
    assert not Limit(hourly=1, once=2).allows(made, hours=1)


def test_a_slope_that_may_be_within_the_limit_is_allowed() -> None:
    assert Limit(hourly=1, once=0).allows(Slope(hourly=3, low=-1, high=7), hours=1)


def test_few_samples_have_no_slope() -> None:
    with pytest.raises(TooFew, match="3 samples are too few"):
        slope([0, 1, 2], [0, 1, 2])
