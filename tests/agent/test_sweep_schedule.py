"""The table of connections is read rarely, unless connections come fast."""

from __future__ import annotations

import pytest

from bpfsvc.agent.flows.sweep_schedule import Signs, SweepSchedule

ROOM = 64_000
MANY = ROOM // 64


def schedule(shortest: float = 60.0) -> SweepSchedule:
    made = SweepSchedule(5.0, ROOM)
    made.begin(100.0, closed=10)
    made.expect(shortest)
    return made


def test_nothing_is_read_for_half_a_minute_while_nothing_happens() -> None:
    assert not schedule().is_due(129.0, Signs())
    assert schedule().is_due(130.0, Signs())


@pytest.mark.parametrize(
    "signs",
    [
        pytest.param(Signs(half_full=True), id="the table is half full"),
        pytest.param(Signs(half_open=MANY + 1), id="many are half open"),
        pytest.param(Signs(closed=MANY + 11), id="many more are closed than before"),
    ],
)
def test_it_is_read_soon_if_connections_come_fast(signs: Signs) -> None:
    assert not schedule().is_due(104.0, signs)
    assert schedule().is_due(105.0, signs)


def test_it_is_read_rarely_if_connections_come_as_fast_as_before() -> None:
    assert not schedule().is_due(105.0, Signs(half_open=MANY, closed=MANY + 10))


def test_the_first_time_it_is_read_soon() -> None:
    """Nothing is known of the table yet."""
    first = SweepSchedule(5.0, ROOM)
    first.begin(100.0)
    assert first.is_due(105.0, Signs())


@pytest.mark.parametrize(
    ("shortest", "seconds"),
    [
        pytest.param(20.0, 10.0, id="half as much longer"),
        pytest.param(86400.0, 30.0, id="at least every half minute"),
        pytest.param(float("inf"), 30.0, id="also if there are no connections"),
        pytest.param(1.0, 5.0, id="not more often than it may be"),
        pytest.param(0.0, 5.0, id="as often as possible"),
    ],
)
def test_it_is_read_as_often_as_its_entries_need(shortest: float, seconds: float) -> None:
    assert not schedule(shortest).is_due(99.9 + seconds, Signs())
    assert schedule(shortest).is_due(100.0 + seconds, Signs())
