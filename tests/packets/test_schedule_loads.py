"""Schedules that compare loads choose what ip_vs chooses.

The model is tests/specification/ipvs_loads.py: the rules of the kernel's C, written anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from bpfsvc.services.scheduling.schedulers import Schedule, Scheduler, lay_out
from tests.packets.loads import WEIGHTS, Loaded, program
from tests.specification import ipvs_loads
from tests.specification.ipvs import Destination
from tests.specification.ipvs_loads import Conns, Rule

RULES = {Schedule[name.upper()]: rule for name, rule in ipvs_loads.RULES.items()}

OPENED = 10_000


class Model:
    """ip_vs with one virtual service: numbers of connections, and whose turn it is."""

    def __init__(self, rule: Rule, destinations: Sequence[Destination]) -> None:
        self.rule, self.destinations = rule, destinations
        self.conns = [Conns()] * len(destinations)

    def open(self) -> int | None:
        """A SYN: it is active from then on."""
        chosen = self.rule(self.destinations, self.conns)
        if chosen is not None:
            self._add(chosen, 1, 0)
        return chosen

    def end(self, chosen: int) -> None:
        """A FIN or a reset."""
        self._add(chosen, -1, 1)

    def expire(self, chosen: int) -> None:
        """Its time is over."""
        self._add(chosen, 0, -1)

    def _add(self, chosen: int, active: int, inactive: int) -> None:
        before = self.conns[chosen]
        self.conns[chosen] = Conns(before.active + active, before.inactive + inactive)


def compare(service: Loaded, model: Model, opened: int, alive: int, seed: int) -> None:
    """Open and close connections in a random order; every choice is the model's.

    ``alive``: so many are active at a time, and as many inactive, at most.
    """
    random = Random(seed)
    active: dict[int, int] = {}
    inactive: dict[int, int] = {}
    ports = iter(range(1024, 1024 + opened))
    port: int | None = next(ports)
    while port or active or inactive:
        step = random.random()
        if port and step < 0.4 and len(active) < alive:
            chosen = service.open(port)
            assert chosen == model.open(), f"connection {port - 1023}: {service.numbers()}"
            if chosen is not None:
                # A client that has no answer yet has nothing to end by a FIN.
                service.answer(port, chosen, "SA")
                active[port] = chosen
            port = next(ports, None)
        elif active and step < 0.7 and len(inactive) < alive:
            ended = random.choice(list(active))
            service.send(ended, random.choice(("R", "FA")))
            model.end(active[ended])
            inactive[ended] = active.pop(ended)
        elif inactive:
            gone = next(iter(inactive))
            service.remove(gone)
            model.expire(inactive.pop(gone))
    assert model.conns == [Conns()] * len(model.destinations)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", RULES, ids=lambda rule: rule.name.lower())
def test_ten_thousand_connections_go_where_ip_vs_sends_them(
    counted: Loaded, schedule: Schedule
) -> None:
    model = Model(RULES[schedule], program(counted, schedule, WEIGHTS))
    compare(counted, model, OPENED, 120, seed=schedule)
    assert counted.numbers() == [(0, 0)] * len(WEIGHTS)


@pytest.mark.parametrize("schedule", RULES, ids=lambda rule: rule.name.lower())
@pytest.mark.parametrize("weights", [(1,), (1, 1, 1), (2, 7, 1, 7), (65535, 1)], ids=str)
def test_a_few_connections_go_where_ip_vs_sends_them(
    counted_ipv4: Loaded, schedule: Schedule, weights: tuple[int, ...]
) -> None:
    model = Model(RULES[schedule], program(counted_ipv4, schedule, weights))
    compare(counted_ipv4, model, 150, 12, seed=len(weights))
    assert counted_ipv4.numbers() == [(0, 0)] * len(weights)


@pytest.mark.parametrize("schedule", RULES, ids=lambda rule: rule.name.lower())
def test_any_numbers_are_compared_as_ip_vs_compares_them(
    counted_ipv4: Loaded, schedule: Schedule
) -> None:
    """Numbers that no test opens, and those beside which a rounding would decide."""
    random = Random(schedule)
    for case in range(60):
        weights = [
            random.choice((1, 2, 3, 7, 100, 65535)) for _ in range(random.choice((2, 5, 64)))
        ]
        there = program(counted_ipv4, schedule, weights)
        most = random.choice((2, 10, 300, 5_000_000))
        numbers = [(random.randrange(most), random.randrange(3 * most)) for _ in weights]
        counted_ipv4.put(numbers)
        expected = RULES[schedule](there, [Conns(*number) for number in numbers])
        assert counted_ipv4.open(2000 + case) == expected, (weights, numbers)


def test_numbers_below_0_are_not_mistaken_for_many(counted_ipv4: Loaded) -> None:
    """Another CPU takes a connection back before this one has added it."""
    program(counted_ipv4, Schedule.LC, (1, 1, 1))
    counted_ipv4.put([(0, 1), (-1, 0), (0, 0)])
    assert counted_ipv4.open(2000) == 1
    counted_ipv4.put([(0, 3), (0, -1), (0, 0)])
    assert counted_ipv4.open(2001) == 1


def program_with_table(
    service: Loaded, schedule: Schedule, weights: Sequence[int], first: int = 1
) -> int:
    """Write a Service whose scheduler draws by a table; return how many places the table has."""
    weighted = [((b"", number), weight) for number, weight in enumerate(weights)]
    layout = lay_out(Scheduler(schedule.name.lower()), weighted)
    table = memoryview(layout.table).cast("H").tolist()
    service.program(schedule, layout.weights, table=table, first=first)
    return len(table)


def test_two_draws_are_as_ip_vs_draws_them(counted_ipv4: Loaded) -> None:
    """By numbers: the chance of each backend, as its weights and loads give it."""
    weights = (3, 1, 2)
    program_with_table(counted_ipv4, Schedule.TWOS, weights, first=2)
    numbers = [(30, 0), (9, 0), (5, 5)]
    there = [Destination(b"", number, weight) for number, weight in enumerate(weights)]
    conns = [Conns(*number) for number in numbers]
    draws = range(sum(weights) + 1)
    chances = Counter(ipvs_loads.twos(there, conns, (draw, two)) for draw in draws for two in draws)
    times = 4900
    counts = Counter[int | None]()
    for number in range(times):
        counted_ipv4.put(numbers)
        counts[counted_ipv4.open(1024 + number)] += 1
        counted_ipv4.remove(1024 + number)
    assert set(counts) == set(chances)
    for backend, share in chances.items():
        assert abs(counts[backend] - times * share / len(draws) ** 2) < 180, (counts, chances)


def test_of_more_backends_than_are_compared_the_better_one_of_two_is_chosen(
    counted_ipv4: Loaded,
) -> None:
    """Nobody is chosen twice before nearly all were once, which a choice at random does."""
    program(counted_ipv4, Schedule.LC, [1] * 200)
    counts = Counter(counted_ipv4.open(1024 + number) for number in range(200))
    assert len(counts) > 135
    assert max(counts.values()) <= 4


def test_a_backend_beyond_the_compared_ones_is_drawn_by_its_weight(counted_ipv4: Loaded) -> None:
    weights = [1] * 69 + [3000]
    program_with_table(counted_ipv4, Schedule.SED, weights)
    counts = Counter(counted_ipv4.open(1024 + number) for number in range(100))
    assert counts[69] > 90


def test_each_entry_of_a_long_table_is_drawn_from(counted_ipv4: Loaded) -> None:
    weights = [1] * 100 + [3] * 100
    places = program_with_table(counted_ipv4, Schedule.WLC, weights)
    assert places > 3 * counted_ipv4.node.pinned.layout.constant("TABLE_CHUNK")
    counts = Counter(counted_ipv4.open(1024 + number) for number in range(400))
    assert len({backend for backend in counts if backend is not None and backend >= 180}) > 15
    assert sum(count for backend, count in counts.items() if backend in range(100)) < 160


def test_few_backends_are_compared_after_many_were_drawn_from(counted_ipv4: Loaded) -> None:
    """Both need the same memory of the processor."""
    program(counted_ipv4, Schedule.LC, [1] * 200)
    for number in range(20):
        counted_ipv4.open(1024 + number)
    program(counted_ipv4, Schedule.LC, (1, 1, 1))
    counted_ipv4.put([(9, 0), (9, 0), (0, 0)])
    assert counted_ipv4.open(2000) == 2


def test_clients_are_refused_while_every_backend_has_more_than_its_weight(
    counted_ipv4: Loaded,
) -> None:
    program(counted_ipv4, Schedule.OVF, (2, 1))
    chosen = [counted_ipv4.open(3000 + number) for number in range(6)]
    assert chosen == [0, 0, 0, 1, 1, None]
    assert counted_ipv4.node.counter("rejected__no_endpoints") == 1
    counted_ipv4.send(3000, "R")
    assert counted_ipv4.open(3010) == 0


# -- what counts, and when it does --------------------------------------------------------------
