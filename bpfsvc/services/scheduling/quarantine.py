"""Outlier ejection: endpoints that connections fail to get none for a while.

The annotation is ``bpfsvc.io/quarantine``: ``5 failures/10s for 30s``. After so many failures
within so many seconds, an endpoint is ejected: it gets no new connections for so long. Then the
endpoint is on trial (half-open): one connection at a time probes it (bpf/maps/quarantined.h). A
failed probe ejects the endpoint again, and an established one ends the trial. Of each set of
endpoints that some clients share, at most half are ejected or on trial at a time, so never the last
one. If more would be, the endpoints that were ejected last are used as all others are.

Pure: the agent hands in the time, and how attempts to connect have ended (bpf/maps/
backend_outcomes.h), and asks what has changed. What a former agent knew is lost: an endpoint that
still fails is ejected anew.
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
    """So many ``failures`` within ``window`` seconds eject an endpoint for ``seconds``."""

    failures: int
    window: int
    seconds: int


class Outcome(NamedTuple):
    """How attempts to connect to an endpoint ended, since the last look."""

    failures: int
    successes: int


Groups = Collection[frozenset[Place]]
"""Sets of endpoints that some clients share: all of the Service's, the ones on this node."""


class Step(Enum):
    """What happens to an endpoint."""

    AWAY = "is left out"
    AWAY_AGAIN = "is left out again"
    TRIAL = "is on trial"
    BACK = "is back"


class Change(NamedTuple):
    """What has happened to an endpoint, by which rule, and after how many failures."""

    service: ServiceKey
    endpoint: Place
    step: Step
    rule: Rule
    failures: int = 0


def parse_quarantine(text: str) -> Rule:
    """Return the rule of a text. Raises ``ValueError`` with one line."""
    match = _RULE.fullmatch(" ".join(text.split()))
    if not match:
        raise ValueError(f"{shortened(text)} must be like '5 failures/10s for 30s'")
    failures = int(match[1])
    window, seconds = (int(match[at]) * _UNITS[match[at + 1]] for at in (2, 4))
    if not 1 <= failures <= MOST_FAILURES:
        raise ValueError(f"failures must be 1 to {MOST_FAILURES}, not {failures}")
    for number in (window, seconds):
        if not 1 <= number <= MOST_SECONDS:
            raise ValueError(f"seconds must be 1 to {MOST_SECONDS}, not {number}")
    return Rule(failures, window, seconds)


def left_out(group: Collection[Place], away: Iterable[Place]) -> set[Place]:
    """Return which endpoints of a group are ejected: at most half, the first of ``away``."""
    of_group = [endpoint for endpoint in away if endpoint in group]
    return set(of_group[: len(group) // 2])


@dataclass(slots=True)
class _Watched:
    """A Service that has the annotation.

    * ``failures``: of each endpoint that is used, when and how many.
    * ``away``: until when each endpoint is ejected, in the order of ejection.
    * ``trial``: the endpoints that the next connection probes, in the same order.
    """

    key: ServiceKey
    rule: Rule
    groups: Groups = ()
    failures: dict[Place, list[tuple[float, int]]] = field(default_factory=dict)
    away: dict[Place, float] = field(default_factory=dict)
    trial: dict[Place, None] = field(default_factory=dict)

    def step(self, now: float, outcomes: Mapping[Place, Outcome]) -> Iterator[Change]:
        """Note how attempts have ended; yield the changes."""
        self._forget_gone()
        begun = self._end_periods(now)
        for endpoint in begun:
            yield Change(self.key, endpoint, Step.TRIAL, self.rule)
        # If a trial begins now, the outcomes of its endpoint are from before the trial.
        used = frozenset[Place]().union(*self.groups).difference(self.away, begun)
        # If not all may be ejected, the worst are.
        for endpoint in sorted(outcomes, key=lambda endpoint: -outcomes[endpoint].failures):
            if endpoint in used:
                yield from self._judge(endpoint, outcomes[endpoint], now)

    def _may_leave(self, endpoint: Place) -> bool:
        """True if an endpoint may be ejected, too."""
        return all(
            endpoint in left_out(group, (*self.away, endpoint))
            for group in self.groups
            if endpoint in group
        )

    def _forget_gone(self) -> None:
        """Forget endpoints that the Service has no more, or does not use."""
        known = frozenset[Place]().union(*self.groups)
        for by_endpoint in (self.away, self.failures, self.trial):
            for endpoint in by_endpoint.keys() - known:
                del by_endpoint[endpoint]

    def _end_periods(self, now: float) -> list[Place]:
        """Return the endpoints on trial from now on: after their time, or as too many were out."""
        ended = [
            endpoint
            for endpoint, until in self.away.items()
            if until <= now
            or any(
                endpoint not in left_out(group, self.away)
                for group in self.groups
                if endpoint in group
            )
        ]
        for endpoint in ended:
            del self.away[endpoint]
        self.trial |= dict.fromkeys(ended)
        return ended

    def _judge(self, endpoint: Place, outcome: Outcome, now: float) -> Iterator[Change]:
        """Judge an endpoint that is used or on trial."""
        if endpoint in self.trial:
            if outcome.failures and self._may_leave(endpoint):
                del self.trial[endpoint]
                self.away[endpoint] = now + self.rule.seconds
                yield Change(self.key, endpoint, Step.AWAY_AGAIN, self.rule, outcome.failures)
            elif outcome.successes and not outcome.failures:
                del self.trial[endpoint]
                yield Change(self.key, endpoint, Step.BACK, self.rule)
        elif outcome.failures:
            failures = self._add_failures(endpoint, outcome.failures, now)
            if failures >= self.rule.failures and self._may_leave(endpoint):
                self.failures.pop(endpoint, None)
                self.away[endpoint] = now + self.rule.seconds
                yield Change(self.key, endpoint, Step.AWAY, self.rule, failures)

    def _add_failures(self, endpoint: Place, count: int, now: float) -> int:
        """Note failures; return how many there were within the window."""
        start = now - self.rule.window
        recent = [failure for failure in self.failures.get(endpoint, ()) if failure[0] > start]
        recent.append((now, count))
        # A window has at most as many items as seconds, and no more are needed.
        self.failures[endpoint] = recent[-self.rule.failures :]
        return sum(failures for _, failures in recent)


class Quarantines:
    """The Services that have the annotation, and their ejected endpoints."""

    def __init__(self) -> None:
        self._watched: dict[ServiceKey, _Watched] = {}
        self._busy: set[ServiceKey] = set()
        """Services with an endpoint that is ejected, or on trial."""

    def watch(self, key: ServiceKey, rule: Rule) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
        """Use a rule from now on; return the ejected endpoints, and the endpoints on trial."""
        watched = self._watched.setdefault(key, _Watched(key, rule))
        watched.rule = rule
        return tuple(watched.away), tuple(watched.trial)

    def forget(self, key: ServiceKey) -> None:
        """Forget a Service that has no such annotation any more."""
        self._watched.pop(key, None)
        self._busy.discard(key)

    def set_groups(self, key: ServiceKey, groups: Groups) -> None:
        """Note which endpoints a Service uses, ejected or not."""
        if key in self._watched:
            self._watched[key].groups = groups

    def step(
        self, now: float, outcomes: Mapping[ServiceKey, Mapping[Place, Outcome]]
    ) -> list[Change]:
        """Note how attempts have ended since the last call; return what has changed by it."""
        changes: list[Change] = []
        for key in {*self._busy, *outcomes}:
            if watched := self._watched.get(key):
                changes += watched.step(now, outcomes.get(key, {}))
                if watched.away or watched.trial:
                    self._busy.add(key)
                else:
                    self._busy.discard(key)
        return changes

    def states(self) -> Iterator[tuple[ServiceKey, Place, float | None]]:
        """Yield the ejected endpoints, each with the time until when; None: on trial."""
        for key in self._busy:
            watched = self._watched[key]
            yield from ((key, endpoint, until) for endpoint, until in watched.away.items())
            yield from ((key, endpoint, None) for endpoint in watched.trial)
