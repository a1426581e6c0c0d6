"""Some service ports have series of their own; the sum of the others only grows."""

from __future__ import annotations

import pytest

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.choice import Choice
from bpfsvc.metrics.sums import Folding
from bpfsvc.services.entries import ServicePort
from bpfsvc.services.plans.applied import Applied, applied

FOLDING = Folding(16, 16)
"""Two fields, one CPU."""


def port(number: int, namespace: str = "default") -> Applied:
    return applied(ServicePort(namespace, f"s{number}", "", 6, 4), 80, number, 1, [], {})


class Scrapes:
    """What a node counts, by the number of the service port."""

    def __init__(self, series: ServiceSeries) -> None:
        self.choice = Choice(series, FOLDING)
        self.counts: dict[int, int] = {}
        self.growth: dict[str, int] = {}
        """How much each series has grown in all scrapes, as Prometheus adds it up."""
        self._before: dict[str, int] = {}

    def scrape(self, namespace: str = "default") -> dict[str, int]:
        """Return the values of all series; that of others is ``other``."""
        counted = [
            (port(number, namespace), FOLDING.number((count, 0)))
            for number, count in self.counts.items()
            if count
        ]
        shown, others = self.choice.split(counted)
        now = {item.port.name: FOLDING.fields(counts)[0] for item, counts in shown}
        if others:
            now["other"] = others[0]
        for name, value in now.items():
            if name in self._before:
                assert value >= self._before[name], f"{name} has shrunk"
                self.growth[name] = self.growth.get(name, 0) + value - self._before[name]
        self._before = now
        return now

    def remove(self, number: int) -> None:
        count = self.counts.pop(number)
        self.choice.removed(number, lambda: FOLDING.number((count, 0)))


@pytest.fixture
def scrapes() -> Scrapes:
    return Scrapes(ServiceSeries(most=2))


def test_all_are_shown_while_they_are_few(scrapes: Scrapes) -> None:
    scrapes.counts = {1: 5, 2: 7, 3: 0}
    assert scrapes.scrape() == {"s1": 5, "s2": 7}


def test_those_with_the_most_traffic_are_shown_and_the_others_summed(scrapes: Scrapes) -> None:
    scrapes.counts = {1: 5, 2: 70, 3: 60, 4: 1}
    assert scrapes.scrape() == {"s2": 70, "s3": 60, "other": 6}


def test_a_service_port_in_the_sum_that_passes_another_leaves_its_counts_there(
    scrapes: Scrapes,
) -> None:
    scrapes.counts = {1: 50, 2: 70, 3: 60}
    assert scrapes.scrape() == {"s2": 70, "s3": 60, "other": 50}
    scrapes.counts[1] = 90
    assert scrapes.scrape() == {"s1": 90, "s2": 70, "other": 90}
    scrapes.counts[3] = 63
    assert scrapes.scrape() == {"s1": 90, "s2": 70, "other": 93}


def test_series_do_not_flap_between_service_ports_of_like_traffic(scrapes: Scrapes) -> None:
    scrapes.counts = {1: 100, 2: 100, 3: 99}
    assert scrapes.scrape().keys() == {"s1", "s2", "other"}
    for number in (3, 1, 3, 2, 3):
        scrapes.counts[number] += 3
        assert scrapes.scrape().keys() == {"s1", "s2", "other"}
    scrapes.counts[3] = 150
    assert scrapes.scrape().keys() == {"s1", "s3", "other"}


def test_the_rates_of_all_series_are_the_rate_of_the_node(scrapes: Scrapes) -> None:
    """What a service port counts while it gets or loses its series is in the sum."""
    scrapes.counts = {number: 10 + number for number in range(1, 6)}
    chosen = [set(scrapes.scrape())]
    grown = 0
    for turn in range(20):
        for number in scrapes.counts:
            more = 40 if number == turn % 5 + 1 else 1
            scrapes.counts[number] += more
            grown += more
        chosen.append(set(scrapes.scrape()))
    assert len({frozenset(names) for names in chosen}) > 1
    assert sum(scrapes.growth.values()) == grown


def test_the_sum_does_not_shrink_when_a_service_is_removed(scrapes: Scrapes) -> None:
    scrapes.counts = {1: 5, 2: 70, 3: 60, 4: 1}
    scrapes.scrape()
    scrapes.remove(1)
    assert scrapes.scrape() == {"s2": 70, "s3": 60, "other": 6}
    scrapes.remove(2)
    assert scrapes.scrape() == {"s3": 60, "s4": 1, "other": 6}
    scrapes.counts |= {1: 3, 4: 2}
    scrapes.scrape()


def test_patterns_choose_by_namespace_and_name() -> None:
    scrapes = Scrapes(ServiceSeries(patterns=("default/s1", "default/s3*")))
    scrapes.counts = {1: 5, 2: 70, 3: 60, 31: 1, 4: 1}
    assert scrapes.scrape() == {"s1": 5, "s3": 60, "s31": 1, "other": 71}


def test_without_a_limit_there_is_no_sum() -> None:
    scrapes = Scrapes(ServiceSeries())
    scrapes.counts = {number: number for number in range(1, 2000)}
    assert "other" not in scrapes.scrape()
