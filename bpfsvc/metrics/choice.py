"""Which service ports have series of their own, and the sum of all others.

A node of a large cluster serves thousands of Services, and each series costs memory in Prometheus.
So by default only the service ports with the most traffic have series, and one more series is the
sum of the others. Two things must hold, or rates in Prometheus would be wrong:

* Series do not come and go. The counts are those since the start of the agent, and a service port
  that has series counts a fifth more when they are compared.
* The sum only grows, as a counter must. A service port that gets series of its own leaves its
  counts in the sum, and one that loses its series brings to the sum what it counts from then on.
  So the rates of all series add up to the rate of the node; their values do not.

Counts of a service port are one number, with the fields side by side (:mod:`.sums`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.sums import Folding
from bpfsvc.services.plans.applied import Applied

Counted = tuple[Applied, int]
"""A service port and its counts."""

OTHER = ("", "other", "", "", "")
"""The labels of the sum; no Service has an empty namespace."""

_BONUS, _OF = 6, 5
"""A service port with series keeps them until another has a fifth more traffic."""


class Choice:
    """Chooses at each scrape; its caller holds a lock."""

    def __init__(
        self,
        series: ServiceSeries,
        folding: Folding,
        score: Callable[[tuple[int, ...]], int] = sum,
    ) -> None:
        """``score(fields)``: how much traffic some counts are."""
        self._series = series
        self._folding = folding
        self._score = score
        self._shown: dict[int, int] = {}
        """By service id: the counts of those with series, at the last scrape."""
        self._offset = 0
        self._sum: tuple[int, ...] = ()

    def split(self, counted: Sequence[Counted]) -> tuple[Sequence[Counted], tuple[int, ...]]:
        """Return those with series of their own, and the sum of the others; empty if none counted.

        ``counted``: all service ports that have counted anything.
        """
        if self._series.shows_all:
            return counted, ()
        chosen = self._chosen(counted)
        if len(chosen) == len(counted) and not self._sum:
            self._shown = _by_id(chosen)
            return chosen, ()
        return chosen, self._add_others(counted, chosen)

    def removed(self, service_id: int, counts: Callable[[], int]) -> None:
        """Note that a service port is gone; ``counts()`` returns all that it has counted."""
        if self._shown.pop(service_id, None) is None and self._sum:
            self._offset += counts()

    def counted(self, totals: dict[int, int], ports: Iterable[Applied]) -> list[Counted]:
        """Return the totals, by service id, of service ports that are there; forget the others."""
        present = {port.service_id: port for port in ports if port.service_id in totals}
        for service_id in totals.keys() - present.keys():
            self.removed(service_id, partial(int, totals.pop(service_id)))
        return [(present[service_id], counts) for service_id, counts in totals.items()]

    def _chosen(self, counted: Sequence[Counted]) -> Sequence[Counted]:
        if self._series.patterns:
            matches = self._series.matches
            return [item for item in counted if matches(item[0].port[0], item[0].port[1])]
        most = self._series.most or 0
        if len(counted) <= most:
            return counted
        shown, score, fields = self._shown, self._score, self._folding.fields
        ranks = [
            score(fields(counts)) * (_BONUS if applied.service_id in shown else _OF)
            for applied, counts in counted
        ]
        best = heapq.nlargest(most, range(len(ranks)), ranks.__getitem__)
        return [counted[at] for at in sorted(best)]

    def _add_others(self, counted: Iterable[Counted], chosen: Iterable[Counted]) -> tuple[int, ...]:
        """Return the sum of those not chosen, with what others have left in it."""
        shown, before = _by_id(chosen), self._shown
        others = 0
        for applied, counts in counted:
            service_id = applied.service_id
            if service_id not in shown:
                others += counts
                self._offset -= before.get(service_id, 0)
            elif self._sum and service_id not in before:
                self._offset += counts
        self._shown = shown
        now = self._folding.not_negative(others + self._offset)
        self._sum = tuple(map(max, self._sum or now, now))
        return self._sum


def _by_id(counted: Iterable[Counted]) -> dict[int, int]:
    return {applied.service_id: counts for applied, counts in counted}
