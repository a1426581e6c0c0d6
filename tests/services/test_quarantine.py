"""Endpoints that connections fail to leave for a while, by a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.quarantine import (
    MOST_FAILURES,
    MOST_SECONDS,
    Outcome,
    Quarantines,
    Rule,
    Step,
    left_out,
    parse_quarantine,
)

KEY: ServiceKey = ("default", "web")
RULE = Rule(failures=3, window=10, seconds=30)
A, B, C, D = (f"10.0.0.{number}" for number in range(1, 5))


# -- the annotation --


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("5 failures/10s for 30s", Rule(5, 10, 30)),
        ("1 failure/1s for 1s", Rule(1, 1, 1)),
        (" 1  failure / 2m  for 1h ", Rule(1, 120, 3600)),
        (f"{MOST_FAILURES} failures/24h for {MOST_SECONDS}s", Rule(MOST_FAILURES, 86400, 86400)),
    ],
)
def test_a_rule_is_read(text: str, rule: Rule) -> None:
    assert parse_quarantine(text) == rule


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "'' must be like '5 failures/10s for 30s'"),
        ("5 failures", "'5 failures' must be like '5 failures/10s for 30s'"),
        ("5 failures/10 for 30", "must be like"),
        ("-5 failures/10s for 30s", "must be like"),
        ("٥ failures/10s for 30s", "must be like"),
        ("5 failures/10s for 30s then 60s", "must be like"),
        ("0 failures/10s for 30s", "failures must be 1 to 10000, not 0"),
        ("10001 failures/10s for 30s", "failures must be 1 to 10000, not 10001"),
        ("5 failures/0s for 30s", "seconds must be 1 to 86400, not 0"),
        ("5 failures/10s for 25h", "seconds must be 1 to 86400, not 90000"),
        ("x" * 1000, f"'{'x' * 40}' must be like"),
    ],
)
def test_what_is_no_rule_is_named_in_one_line(text: str, error: str) -> None:
    with pytest.raises(ValueError, match="must be") as raised:
        parse_quarantine(text)
    assert error in str(raised.value)
    assert "\n" not in str(raised.value)


# -- the policy --


def place(address: str) -> Place:
    return pack(address), 8080


class Judged:
    """One Service, and what becomes of its endpoints."""

    def __init__(self, *groups: Iterable[str], rule: Rule = RULE) -> None:
        self.quarantines = Quarantines()
        self.rule = rule
        self.quarantines.watch(KEY, rule)
        self.groups(*groups)

    def groups(self, *groups: Iterable[str]) -> None:
        self.quarantines.set_groups(KEY, {frozenset(map(place, each)) for each in groups})

    def at(
        self, now: float, *, failed: Iterable[str] = (), worked: Iterable[str] = ()
    ) -> list[tuple[str, Step]]:
        """Note an attempt for each address named; return what has changed."""
        failures, successes = list(failed), list(worked)
        outcomes = {
            place(one): Outcome(failures.count(one), successes.count(one))
            for one in (*failures, *successes)
        }
        changes = self.quarantines.step(now, {KEY: outcomes} if outcomes else {})
        return [(unpack(one.endpoint[0]), one.step) for one in changes]

    @property
    def out(self) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
        """The endpoints that are left out, and those on trial."""
        return self.quarantines.watch(KEY, self.rule)

    @property
    def away(self) -> set[str]:
        return {unpack(address) for address, _ in self.out[0]}


def test_so_many_failures_within_the_window_take_an_endpoint_out() -> None:
    judged = Judged([A, B])
    assert judged.at(0, failed=[A]) == []
    assert judged.at(5, failed=[A]) == []
    assert judged.at(9, failed=[A]) == [(A, Step.AWAY)]
    assert judged.away == {A}


def test_failures_that_are_older_than_the_window_do_not_count() -> None:
    judged = Judged([A, B])
    for now in range(0, 100, 5):
        assert judged.at(now, failed=[A]) == []


def test_many_failures_of_one_second_count_together() -> None:
    assert Judged([A, B]).at(0, failed=[A, A, A]) == [(A, Step.AWAY)]


def test_successes_do_not_make_up_for_failures() -> None:
    judged = Judged([A, B])
    assert judged.at(0, failed=[A, A], worked=[A] * 1000) == []
    assert judged.at(1, failed=[A], worked=[A] * 1000) == [(A, Step.AWAY)]


def test_of_two_only_one_is_out_and_the_last_one_never() -> None:
    judged = Judged([A, B])
    assert judged.at(0, failed=[A] * 3) == [(A, Step.AWAY)]
    for now in range(1, 29):
        assert judged.at(now, failed=[B] * 10) == []
    assert Judged([A]).at(0, failed=[A] * 100) == []


@pytest.mark.parametrize("endpoints", range(1, 9))
def test_at_most_half_are_out(endpoints: int) -> None:
    every = [f"10.0.1.{number}" for number in range(endpoints)]
    judged = Judged(every)
    judged.at(0, failed=every * 3)
    assert len(judged.away) == endpoints // 2


def test_the_worst_leave_first() -> None:
    judged = Judged([A, B, C])
    assert judged.at(0, failed=[A] * 3 + [B] * 9 + [C] * 5) == [(B, Step.AWAY)]


def test_the_half_counts_for_each_set_of_endpoints_that_clients_share() -> None:
    """C and D are the endpoints of this node, to which clients outside are bound."""
    judged = Judged([A, B, C, D], [C, D])
    assert judged.at(0, failed=[C] * 4 + [D] * 3) == [(C, Step.AWAY)]
    assert judged.at(1, failed=[A] * 3) == [(A, Step.AWAY)]
    assert judged.at(2, failed=[B] * 3) == []


def test_after_its_time_an_endpoint_is_on_trial_and_a_success_brings_it_back() -> None:
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    assert judged.at(29.9) == []
    assert judged.at(30) == [(A, Step.TRIAL)]
    assert judged.away == set()
    assert judged.at(60) == []
    assert judged.at(61, worked=[A]) == [(A, Step.BACK)]
    assert judged.at(62, failed=[A]) == []
    assert list(judged.quarantines.states()) == []


def test_a_failure_in_the_trial_takes_it_out_for_another_time() -> None:
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    judged.at(30)
    assert judged.at(31, failed=[A], worked=[A]) == [(A, Step.AWAY_AGAIN)]
    assert judged.at(60.9) == []
    assert judged.at(61) == [(A, Step.TRIAL)]


def test_what_was_noted_before_its_trial_does_not_decide_it() -> None:
    """These are connections that began before the endpoint left."""
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    assert judged.at(30, failed=[A]) == [(A, Step.TRIAL)]
    assert judged.at(31, failed=[A]) == [(A, Step.AWAY_AGAIN)]
    assert judged.at(61, worked=[A]) == [(A, Step.TRIAL)]
    assert judged.at(62, worked=[A]) == [(A, Step.BACK)]


def test_those_on_trial_are_told_in_the_order_in_which_they_left() -> None:
    judged = Judged([A, B, C, D])
    judged.at(0, failed=[B] * 3)
    judged.at(1, failed=[A] * 3)
    judged.at(31)
    assert list(judged.out) == [(), (place(B), place(A))]
    judged.at(32, failed=[B])
    assert list(judged.out) == [(place(B),), (place(A),)]
    judged.groups([B, C, D])
    judged.at(33)
    assert list(judged.out) == [(place(B),), ()]


def test_a_trial_goes_on_while_another_endpoint_is_out() -> None:
    """A failed, and must not leave, as B did meanwhile; its next success ends the trial."""
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    assert judged.at(30, failed=[B] * 3) == [(A, Step.TRIAL), (B, Step.AWAY)]
    assert judged.at(31, failed=[A]) == []
    assert judged.at(32, worked=[A]) == [(A, Step.BACK)]


def test_a_success_beside_a_failure_does_not_end_a_trial_that_goes_on() -> None:
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    judged.at(30, failed=[B] * 3)
    assert judged.at(31, failed=[A], worked=[A]) == []
    assert judged.at(32, worked=[A]) == [(A, Step.BACK)]


def test_an_outcome_without_an_attempt_decides_no_trial() -> None:
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    judged.at(30)
    assert judged.quarantines.step(31, {KEY: {place(A): Outcome(0, 0)}}) == []
    assert judged.at(32, worked=[A]) == [(A, Step.BACK)]


def test_the_failures_that_took_an_endpoint_out_do_not_count_when_it_is_back() -> None:
    judged = Judged([A, B], rule=Rule(failures=3, window=100, seconds=10))
    judged.at(0, failed=[A] * 3)
    judged.at(10)
    assert judged.at(11, worked=[A]) == [(A, Step.BACK)]
    assert judged.at(12, failed=[A] * 2) == []
    assert judged.at(13, failed=[A]) == [(A, Step.AWAY)]


def test_what_fails_while_it_is_out_does_not_count() -> None:
    """These are clients that had been sent there before."""
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    assert judged.at(10, failed=[A] * 10) == []
    assert judged.at(30) == [(A, Step.TRIAL)]


def test_when_others_leave_the_service_those_that_are_too_many_get_their_trial() -> None:
    judged = Judged([A, B, C, D])
    judged.at(0, failed=[A] * 3)
    judged.at(1, failed=[B] * 3)
    judged.groups([A, B, C])
    assert judged.at(2) == [(B, Step.TRIAL)]
    judged.groups([A])
    assert judged.at(3) == [(A, Step.TRIAL)]


def test_an_endpoint_that_leaves_the_service_is_forgotten() -> None:
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    judged.groups([B, C])
    assert judged.at(1) == []
    judged.groups([A, B])
    assert judged.away == set()
    assert judged.at(2, failed=[A, A]) == []


def test_an_endpoint_that_is_not_known_is_not_judged() -> None:
    assert Judged([A, B]).at(0, failed=[C] * 9) == []


def test_a_service_without_the_annotation_is_forgotten() -> None:
    judged = Judged([A, B])
    judged.at(0, failed=[A] * 3)
    judged.quarantines.forget(KEY)
    assert judged.at(1, failed=[B] * 3) == []
    assert list(judged.quarantines.states()) == []
    assert judged.away == set()


def test_another_rule_counts_from_the_next_failure_on() -> None:
    judged = Judged([A, B])
    judged.at(0, failed=[A, A])
    judged.rule = Rule(failures=1, window=10, seconds=5)
    judged.quarantines.watch(KEY, judged.rule)
    assert judged.at(1, failed=[A]) == [(A, Step.AWAY)]
    assert judged.at(6) == [(A, Step.TRIAL)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_never_more_than_half_of_any_set_are_out(seed: int) -> None:
    random = Random(seed)
    every = [f"10.0.2.{number}" for number in range(8)]
    judged = Judged(every, rule=Rule(2, 5, 7))
    for now in range(300):
        if random.random() < 0.1:
            judged.groups(*(random.sample(every, random.randint(1, 8)) for _ in range(2)))
        judged.at(
            now,
            failed=random.choices(every, k=random.randint(0, 6)),
            worked=random.choices(every, k=random.randint(0, 3)),
        )
        away, trial = judged.out
        assert not set(away) & set(trial)
        for group in judged.quarantines._watched[KEY].groups:
            assert len(group & set(away)) <= len(group) // 2


def test_those_that_left_first_stay_out() -> None:
    four = [place(one) for one in (A, B, C, D)]
    assert left_out(four, [place(D), place(B), place(A)]) == {place(D), place(B)}
    assert left_out(four[:1], four[:1]) == set()
