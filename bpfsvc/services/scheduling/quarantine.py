"""Endpoints that connections fail to are left out for a while (``bpfsvc.io/quarantine``).

``5 failures/10s for 30s``: after so many failures within so many seconds, an endpoint gets no new
connections for so long. Then it is on trial: it gets one new connection at a time (bpf/maps/
quarantined.h), one failure takes it out once more, and one connection that is established ends the
trial. Of each set of endpoints that some clients share, at most half are left out or on trial at a
time, so never the last one. If more would be, those that came last are used as all others are.

Pure: the agent hands in the time, and how attempts to connect have ended (bpf/maps/
backend_outcomes.h), and asks what has changed. What a former agent knew is lost: an endpoint that
still fails is found out again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.numbers import shortened

MOST_FAILURES = 10_000
MOST_SECONDS = 86400

_RULE = re.compile(r"(\d{1,9}) failures? ?/ ?(\d{1,9})(s|m|h) for (\d{1,9})(s|m|h)", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600}


class Rule(NamedTuple):
    """So many ``failures`` within ``window`` seconds take an endpoint out for ``seconds``."""

    failures: int
    window: int
    seconds: int


class Outcome(NamedTuple):
    """How attempts to connect to an endpoint ended, since the last look."""

    failures: int
    successes: int


Groups = Collection[frozenset[Place]]
"""Sets of endpoints that some clients share: all of the Service's, those of this node."""


class Step(Enum):
    """What happens to an endpoint."""

    AWAY = "is left out"
    AWAY_AGAIN = "is left out again"
    TRIAL = "is on trial"
    BACK = "is back"


class Change(NamedTuple):
    """What has happened to an endpoint, by which rule, and after how many failures."""

    service: ServiceKey
    place: Place
    step: Step
    rule: Rule
    failures: int = 0


def parse_quarantine(text: str) -> Rule:
    """Read the annotation. Raises ``ValueError`` with one line."""
    found = _RULE.fullmatch(" ".join(text.split()))
    if not found:
        raise ValueError(f"{shortened(text)} must be like '5 failures/10s for 30s'")
    failures = int(found[1])
    window, seconds = (int(found[at]) * _UNITS[found[at + 1]] for at in (2, 4))
    if not 1 <= failures <= MOST_FAILURES:
        raise ValueError(f"failures must be 1 to {MOST_FAILURES}, not {failures}")
    for one in (window, seconds):
        if not 1 <= one <= MOST_SECONDS:
            raise ValueError(f"seconds must be 1 to {MOST_SECONDS}, not {one}")
    return Rule(failures, window, seconds)


def left_out(group: Collection[Place], away: Iterable[Place]) -> set[Place]:
    """Return which of a group are left out: at most half, those that were taken out first."""
    found = [one for one in away if one in group]
    return set(found[: len(group) // 2])


@dataclass(slots=True)
class _Watched:
    """A Service that has the annotation.

    * ``failures``: when, and how many, of each endpoint that is used.
    * ``away``: until when each endpoint is left out, those first that were taken out first.
    * ``trial``: the endpoints of which the next connection decides, likewise in order.
    """

    rule: Rule
    groups: Groups = ()
    failures: dict[Place, list[tuple[float, int]]] = field(default_factory=dict)
    away: dict[Place, float] = field(default_factory=dict)
    trial: dict[Place, None] = field(default_factory=dict)

    def may_leave(self, place: Place) -> bool:
        """True if an endpoint may be left out, too."""
        return all(
            place in left_out(group, (*self.away, place)) for group in self.groups if place in group
        )

    def forget_gone(self) -> None:
        """Forget endpoints that the Service has no more, or does not use."""
        known = frozenset[Place]().union(*self.groups)
        self.away = {one: until for one, until in self.away.items() if one in known}
        self.failures = {one: found for one, found in self.failures.items() if one in known}
        self.trial = {one: None for one in self.trial if one in known}

    def end_periods(self, now: float) -> list[Place]:
        """Return the endpoints on trial from now on: after their time, or as too many were out."""
        ended = [
            one
            for one, until in self.away.items()
            if until <= now
            or any(one not in left_out(each, self.away) for each in self.groups if one in each)
        ]
        for one in ended:
            del self.away[one]
        self.trial |= dict.fromkeys(ended)
        return ended

    def failed(self, place: Place, count: int, now: float) -> int:
        """Note failures; return how many there were within the window."""
        start = now - self.rule.window
        recent = [one for one in self.failures.get(place, ()) if one[0] > start]
        recent.append((now, count))
        # A window has at most so many entries as there are seconds in it, and no more are needed.
        self.failures[place] = recent[-self.rule.failures :]
        return sum(each for _, each in recent)


class Quarantines:
    """The Services that have the annotation, and those of their endpoints that are left out."""

    def __init__(self) -> None:
        self._watched: dict[ServiceKey, _Watched] = {}
        self._busy: set[ServiceKey] = set()
        """Services of which an endpoint is left out, or on trial."""

    def watch(self, key: ServiceKey, rule: Rule) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
        """Use a rule from now on; return the endpoints that are left out, and those on trial."""
        one = self._watched.get(key)
        if one is None:
            one = self._watched[key] = _Watched(rule)
        one.rule = rule
        return tuple(one.away), tuple(one.trial)

    def forget(self, key: ServiceKey) -> None:
        """Forget a Service that has no such annotation any more."""
        self._watched.pop(key, None)
        self._busy.discard(key)

    def set_groups(self, key: ServiceKey, groups: Groups) -> None:
        """Note which endpoints a Service uses, left out or not."""
        if key in self._watched:
            self._watched[key].groups = groups

    def step(
        self, now: float, outcomes: Mapping[ServiceKey, Mapping[Place, Outcome]]
    ) -> list[Change]:
        """Note how attempts have ended since the last call; return what has changed by it."""
        found: list[Change] = []
        for key in {*self._busy, *outcomes}:
            one = self._watched.get(key)
            if one is None:
                continue
            one.forget_gone()
            begun = one.end_periods(now)
            found += [Change(key, place, Step.TRIAL, one.rule) for place in begun]
            # If not all may leave, the worst do.
            of_service = outcomes.get(key, {})
            # What was noted of those whose trial begins now is of connections before it.
            known = frozenset[Place]().union(*one.groups).difference(one.away, begun)
            for place in sorted(of_service, key=lambda each: -of_service[each].failures):
                if place in known:
                    found += _judge(key, one, place, of_service[place], now)
            if one.away or one.trial:
                self._busy.add(key)
            else:
                self._busy.discard(key)
        return found

    def states(self) -> Iterator[tuple[ServiceKey, Place, float | None]]:
        """Yield the endpoints that are left out, each with the time until when; None: on trial."""
        for key in self._busy:
            one = self._watched[key]
            yield from ((key, place, until) for place, until in one.away.items())
            yield from ((key, place, None) for place in one.trial)


def _judge(
    key: ServiceKey, one: _Watched, place: Place, outcome: Outcome, now: float
) -> Iterator[Change]:
    """Judge an endpoint that is used."""
    if place in one.trial:
        if outcome.failures and one.may_leave(place):
            del one.trial[place]
            one.away[place] = now + one.rule.seconds
            yield Change(key, place, Step.AWAY_AGAIN, one.rule, outcome.failures)
        elif outcome.successes and not outcome.failures:
            del one.trial[place]
            yield Change(key, place, Step.BACK, one.rule)
        return
    if not outcome.failures:
        return
    failures = one.failed(place, outcome.failures, now)
    if failures >= one.rule.failures and one.may_leave(place):
        one.failures.pop(place, None)
        one.away[place] = now + one.rule.seconds
        yield Change(key, place, Step.AWAY, one.rule, failures)
