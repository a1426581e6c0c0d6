"""Traffic of service ports: what was counted, and what is counted in a second."""

from __future__ import annotations

import pytest

from bpfsvc.inspect.services.connect_times import ConnectTimes
from bpfsvc.inspect.services.look import look
from bpfsvc.inspect.services.ports import collect
from bpfsvc.inspect.services.traffic import Amounts, Refused, Traffic, rates, read_traffic
from bpfsvc.inspect.services.view import with_rates
from tests.inspect.busy import (
    GONE,
    OPEN,
    WEB_BACKENDS,
    busy_node,
    connect_times,
    connection,
    count,
    slots,
)
from tests.inspect.pinned import FIELDS, Maps, place

FIRST, SECOND = ((1, place(text), at) for at, text in enumerate(WEB_BACKENDS, 1))
"""The backends of ``web`` with the indexes of their counters."""


def traffic(seconds: float, *backends: Amounts, refused: Refused | None = None) -> Traffic:
    return Traffic(
        seconds,
        dict(zip((FIRST, SECOND), backends, strict=False)),
        {2: refused} if refused else {},
    )


def test_a_rate_is_what_was_added_by_the_seconds_between() -> None:
    change = rates(
        traffic(10, Amounts(100, 1000, 50000, 900, 70000), refused=Refused(5, 0)),
        traffic(12, Amounts(110, 1200, 60000, 1000, 80000), refused=Refused(5, 8)),
    )
    assert change.backends == {FIRST: Amounts(5, 100, 5000, 50, 5000)}
    assert change.refused == {2: Refused(0, 4)}


def test_a_counter_that_became_smaller_began_anew() -> None:
    before, now = Amounts(100, 1000, 50000, 900, 70000), Amounts(4, 40, 400, 40, 400)
    assert rates(traffic(10, before), traffic(12, now)).backends == {
        FIRST: Amounts(2, 20, 200, 20, 200)
    }


def test_a_backend_that_came_between_began_at_zero() -> None:
    before = traffic(10, Amounts(7))
    now = traffic(11, Amounts(7), Amounts(3, 30))
    assert rates(before, now).backends == {FIRST: Amounts(0), SECOND: Amounts(3, 30)}


def test_the_first_refusal_between_two_looks_counts() -> None:
    change = rates(traffic(10, Amounts()), traffic(12, Amounts(), refused=Refused(6, 0)))
    assert change.refused == {2: Refused(3, 0)}


def test_times_to_connect_are_those_between_two_looks_and_begin_anew_with_a_backend() -> None:
    maps = busy_node()
    connect_times(maps, 1, [0, 100, 0, 0], 9_000)
    connect_times(maps, 2, [0, 0, 0, 50], 60_000)
    before = look(maps, traffic=True)
    connect_times(maps, 1, [0, 100, 4, 0], 9_800)
    connect_times(maps, 2, [0, 3, 0, 0], 300)
    (web, _) = with_rates(before, now := look(maps, traffic=True)).ports
    change = with_rates(before, now).traffic
    assert change
    first, second = (change.connects_of_backend(web, backend) for backend in web.backends)
    assert (first.connects, first.mean_ms, first.quantile(0.5)) == (4, 0.2, (0.128, 0.256))
    assert (second.connects, second.mean_ms, second.quantile(0.5)) == (3, 0.1, (0.064, 0.128))


@pytest.mark.parametrize(
    ("buckets", "share", "text"),
    [
        ([1, 0, 0, 0], 0.5, "<0.064ms"),
        ([0, 1, 1, 0], 0.5, "<0.128ms"),
        ([0, 1, 2, 0], 0.5, "<0.256ms"),
        ([19, 0, 0, 1], 0.95, "<0.064ms"),
        ([18, 0, 0, 2], 0.95, ">0.256ms"),
    ],
)
def test_a_quantile_says_no_more_than_its_bucket(
    buckets: list[int], share: float, text: str
) -> None:
    quantile = ConnectTimes(tuple(buckets), 1, 64).quantile(share)
    assert quantile is not None
    assert quantile.text == text


def test_an_earlier_build_has_no_times_to_connect() -> None:
    maps = busy_node(changes={"connect_times": ("hash", FIELDS["connect_times"][1], ())})
    (web, _) = look(maps, traffic=True).ports
    counted = look(maps, traffic=True).traffic
    assert counted
    assert counted.connects_of(web).quantile(0.5) is None


def test_counters_given_to_another_backend_are_not_compared() -> None:
    """A generation later the counters of a backend are another one's, zeroed."""
    maps = busy_node()
    count(maps, 2, 1000, 1000, 1000, 1000, 1000)
    before = look(maps, traffic=True)
    slots(maps, 1, 9, [WEB_BACKENDS[0], "10.244.5.5:8080", WEB_BACKENDS[0]], WEB_BACKENDS[0])
    count(maps, 2, 1004, 1010, 1010, 1010, 1010)
    now = look(maps, traffic=True)
    assert before.traffic
    assert now.traffic
    (port,) = (port for port in now.ports if port.name == "web")
    change = rates(
        Traffic(0, before.traffic.backends), Traffic(1, now.traffic.backends)
    ).of_backend(port, port.backends[1])
    assert change == Amounts(1004, 1010, 1010, 1010, 1010)


def test_a_backend_in_two_slots_counts_once() -> None:
    maps = busy_node()
    count(maps, 1, 3, 30, 300, 20, 200)
    (port, _) = collect(maps)
    counted = read_traffic(maps, [port])
    assert counted.of_port(port) == (3, 30, 300, 20, 200)


def test_a_draining_backend_has_no_counters() -> None:
    maps = busy_node()
    connection(maps, 1000, GONE, OPEN)
    (port, _) = collect(maps)
    counted = read_traffic(maps, [port])
    assert counted.of_backend(port, port.backends[-1]) is None
    assert counted.of_backend(port, port.backends[0]) == Amounts()


def test_many_counters_are_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = busy_node()
    for index in (1, 2, 3):
        count(maps, index, *[index * 10] * 5)
    (port, _) = collect(maps)
    monkeypatch.setattr("bpfsvc.inspect.maps.services._FEW", 1)
    monkeypatch.setattr(Maps, "value", lambda *_: pytest.fail("one was looked up"))
    assert read_traffic(maps, [port]).of_port(port) == tuple([30] * 5)


def test_rates_need_two_looks_with_traffic() -> None:
    without, counted = look(busy_node()), look(busy_node(), traffic=True)
    with pytest.raises(ValueError, match="two views with traffic"):
        with_rates(without, counted)
