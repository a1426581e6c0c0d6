"""Schedules that compare loads choose what ip_vs chooses, and count as it counts.

The model is tests/specification/ipvs.py: the rules of the kernel's C, written anew.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pytest

from bpfsvc.agent.connection_gc import ConnectionGc
from bpfsvc.services.entries import PortEntries
from bpfsvc.services.schedulers import Schedule, Scheduler, lay_out
from tests.packets.loads import Loaded
from tests.packets.node import Node, address_port, tcp
from tests.packets.peers import TCP_PEERS, Peers
from tests.packets.test_connection_gc import KEEP
from tests.specification import ipvs
from tests.specification.ipvs import Conns, Destination

HALF_OPEN = -100_000
"""A count of half-open pairs by which all entries are where nothing is evicted."""

Rule = Callable[[Sequence[Destination], Sequence[Conns]], int | None]

RULES: dict[Schedule, Rule] = {
    Schedule.LC: ipvs.lc,
    Schedule.WLC: ipvs.wlc,
    Schedule.SED: ipvs.sed,
    Schedule.NQ: ipvs.nq,
    Schedule.OVF: ipvs.ovf,
}

WEIGHTS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3)

OPENED = 10_000


@pytest.fixture
def service(node: Node, tcp_peers: Peers) -> Loaded:
    node.half_open(HALF_OPEN)
    return Loaded(node, tcp_peers)


@pytest.fixture
def quick(node: Node) -> Loaded:
    """TCP over IPv4, for what does not depend on the family."""
    node.half_open(HALF_OPEN)
    return Loaded(node, next(one for one in TCP_PEERS if one.family == 4))


def program(service: Loaded, schedule: Schedule, weights: Sequence[int]) -> list[Destination]:
    """Write the Service as the agent lays it out; return its destinations in the same order."""
    if schedule is Schedule.OVF:
        weights = sorted(weights, reverse=True)
    shown = [1] * len(weights) if schedule is Schedule.LC else weights
    service.program(schedule, shown, reject=True)
    places = map(address_port, service.backends)
    return [Destination(*place, weight) for place, weight in zip(places, weights, strict=True)]


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
@pytest.mark.parametrize("schedule", RULES, ids=lambda one: one.name.lower())
def test_ten_thousand_connections_go_where_ip_vs_sends_them(
    service: Loaded, schedule: Schedule
) -> None:
    model = Model(RULES[schedule], program(service, schedule, WEIGHTS))
    compare(service, model, OPENED, 120, seed=schedule)
    assert service.numbers() == [(0, 0)] * len(WEIGHTS)


@pytest.mark.parametrize("schedule", RULES, ids=lambda one: one.name.lower())
@pytest.mark.parametrize("weights", [(1,), (1, 1, 1), (2, 7, 1, 7), (65535, 1)], ids=str)
def test_a_few_connections_go_where_ip_vs_sends_them(
    quick: Loaded, schedule: Schedule, weights: tuple[int, ...]
) -> None:
    model = Model(RULES[schedule], program(quick, schedule, weights))
    compare(quick, model, 150, 12, seed=len(weights))
    assert quick.numbers() == [(0, 0)] * len(weights)


@pytest.mark.parametrize("schedule", RULES, ids=lambda one: one.name.lower())
def test_any_numbers_are_compared_as_ip_vs_compares_them(quick: Loaded, schedule: Schedule) -> None:
    """Numbers that no test opens, and those beside which a rounding would decide."""
    random = Random(schedule)
    for case in range(60):
        weights = [
            random.choice((1, 2, 3, 7, 100, 65535)) for _ in range(random.choice((2, 5, 64)))
        ]
        there = program(quick, schedule, weights)
        most = random.choice((2, 10, 300, 5_000_000))
        numbers = [(random.randrange(most), random.randrange(3 * most)) for _ in weights]
        quick.put(numbers)
        expected = RULES[schedule](there, [Conns(*one) for one in numbers])
        assert quick.open(2000 + case) == expected, (weights, numbers)


def test_numbers_below_0_are_not_mistaken_for_many(quick: Loaded) -> None:
    """Another CPU takes a connection back before this one has added it."""
    program(quick, Schedule.LC, (1, 1, 1))
    quick.put([(0, 1), (-1, 0), (0, 0)])
    assert quick.open(2000) == 1
    quick.put([(0, 3), (0, -1), (0, 0)])
    assert quick.open(2001) == 1


def test_two_draws_are_as_ip_vs_draws_them(quick: Loaded) -> None:
    """By numbers: the chance of each backend, as its weights and loads give it."""
    weights = (3, 1, 2)
    layout = lay_out(
        Scheduler("twos"), [((b"", number), weight) for number, weight in enumerate(weights)]
    )
    table = memoryview(layout.table).cast("H").tolist()
    quick.program(Schedule.TWOS, layout.weights, table=table, first=2)
    numbers = [(30, 0), (9, 0), (5, 5)]
    there = [Destination(b"", number, weight) for number, weight in enumerate(weights)]
    conns = [Conns(*one) for one in numbers]
    draws = range(sum(weights) + 1)
    chances = Counter(ipvs.twos(there, conns, (one, two)) for one in draws for two in draws)
    times = 4900
    found = Counter[int | None]()
    for number in range(times):
        quick.put(numbers)
        found[quick.open(1024 + number)] += 1
        quick.remove(1024 + number)
    assert set(found) == set(chances)
    for one, share in chances.items():
        assert abs(found[one] - times * share / len(draws) ** 2) < 180, (found, chances)


def test_of_more_backends_than_are_compared_the_better_one_of_two_is_chosen(
    quick: Loaded,
) -> None:
    """Nobody is chosen twice before nearly all were once, which a choice at random does."""
    program(quick, Schedule.LC, [1] * 200)
    found = Counter(quick.open(1024 + number) for number in range(200))
    assert len(found) > 135
    assert max(found.values()) <= 4


def test_a_backend_beyond_the_compared_ones_is_drawn_by_its_weight(quick: Loaded) -> None:
    weights = [1] * 69 + [3000]
    layout = lay_out(
        Scheduler("sed"), [((b"", number), weight) for number, weight in enumerate(weights)]
    )
    table = memoryview(layout.table).cast("H").tolist()
    quick.program(Schedule.SED, layout.weights, table=table, first=1)
    found = Counter(quick.open(1024 + number) for number in range(100))
    assert found[69] > 90


def test_clients_are_refused_while_every_backend_has_more_than_its_weight(quick: Loaded) -> None:
    program(quick, Schedule.OVF, (2, 1))
    chosen = [quick.open(3000 + number) for number in range(6)]
    assert chosen == [0, 0, 0, 1, 1, None]
    assert quick.node.counter("rejected__no_endpoints") == 1
    quick.send(3000, "R")
    assert quick.open(3010) == 0


# -- what counts, and when it does --------------------------------------------------------------


def test_a_connection_counts_from_its_first_packet_to_its_end(service: Loaded) -> None:
    """Active while TCP opens it and has it open, then inactive, then gone."""
    program(service, Schedule.LC, (1,))
    service.open(2000)
    assert service.numbers() == [(1, 0)]
    service.open(2000)
    service.answer(2000, 0, "SA")
    service.send(2000, "A")
    assert service.numbers() == [(1, 0)]
    service.answer(2000, 0, "FA")
    assert service.numbers() == [(0, 1)]
    service.send(2000, "FA")
    service.send(2000, "R")
    assert service.numbers() == [(0, 1)]
    service.remove(2000)
    assert service.numbers() == [(0, 0)]


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_the_collector_takes_a_connection_back_by_either_entry(service: Loaded, hook: str) -> None:
    program(service, Schedule.LC, (1,))
    service.open(2000)
    client, backend = service.client(2000), service.backends[0]
    packet = tcp(client, service.peers.vip) if hook == "ingress" else tcp(backend, client)
    assert service.node.collect(service.node.flow(hook, packet), force=True) == 1
    assert service.numbers() == [(0, 0)]


def test_a_closed_connection_that_begins_again_counts_once(service: Loaded) -> None:
    program(service, Schedule.LC, (1, 1))
    service.open(2000)
    service.answer(2000, 0, "SA")
    service.send(2000, "A")
    service.send(2000, "FA")
    service.answer(2000, 0, "FA")
    assert service.numbers() == [(0, 1), (0, 0)]
    assert service.open(2001) == 1
    assert service.open(2000) == 0
    assert service.numbers() == [(1, 0), (1, 0)]


def test_a_reset_that_was_none_is_taken_back(service: Loaded) -> None:
    """Before the client's acknowledgement any reset counts, and that shows that it was forged."""
    program(service, Schedule.LC, (1,))
    service.open(2000)
    service.answer(2000, 0, "SA")
    service.answer(2000, 0, "R")
    assert service.numbers() == [(0, 1)]
    service.send(2000, "A")
    assert service.numbers() == [(1, 0)]


def test_udp_is_inactive_and_sctp_is_active_when_it_is_established(
    node: Node, peers: Peers
) -> None:
    if peers.protocol == "TCP":
        return
    service = Loaded(node, peers)
    program(service, Schedule.LC, (1,))
    seen = peers.begin(node, peers.client, peers.vip, service.backends[0])
    assert service.numbers() == [(0, 1)]
    node.forward(peers.answer(service.backends[0], seen))
    assert service.numbers() == [(1, 0) if peers.protocol == "SCTP" else (0, 1)]
    node.collect(node.flow("ingress", peers.opening(peers.client, peers.vip)), force=True)
    assert service.numbers() == [(0, 0)]


def test_a_masqueraded_connection_counts_once(node: Node, tcp_peers: Peers) -> None:
    service = Loaded(node, tcp_peers)
    program(service, Schedule.LC, (1,))
    ((port, entries),) = node.applied_state.of(("default", "web")).items()
    frontends = {
        key: policies._replace(other=policies.other._replace(masquerade=True))
        for key, policies in entries.frontends().items()
    }
    node.tables.clear()
    node.applied_state.update({port: None})
    node.program({port: PortEntries(80, entries.backends(), frontends, entries.extra)})
    seen = tcp_peers.connect(node, tcp_peers.external, tcp_peers.vip, service.backends[0])
    assert service.numbers() == [(1, 0)]
    node.forward(tcp(tcp_peers.external, tcp_peers.vip, "FA"))
    node.forward(tcp(service.backends[0], seen, "FA"))
    assert service.numbers() == [(0, 1)]
    flow = node.flow("ingress", tcp(tcp_peers.external, tcp_peers.vip))
    assert node.collect(flow, force=True) == 1
    assert service.numbers() == [(0, 0)]


def test_other_schedules_count_nothing(quick: Loaded) -> None:
    quick.program(Schedule.ROUND, (1, 1))
    for port in range(2000, 2010):
        quick.open(port)
    quick.send(2000, "R")
    quick.remove(2001)
    assert quick.numbers() == [(0, 0)] * 2


def test_a_connection_that_moves_when_it_is_established_counts_once(quick: Loaded) -> None:
    program(quick, Schedule.LC, (1,))
    quick.node.half_open(100_000)
    quick.open(2000)
    assert quick.node.count("new_connections") == 2
    quick.answer(2000, 0, "SA")
    quick.send(2000, "A")
    assert quick.node.count("new_connections") == 0
    assert quick.numbers() == [(1, 0)]
    quick.send(2000, "R")
    quick.remove(2000)
    assert quick.numbers() == [(0, 0)]


# -- counting anew --------------------------------------------------------------------------------


@pytest.fixture
def sweep(node: Node) -> Callable[[], int]:
    node.settings(**{f"{name}_seconds": 3600 for name in ("tcp_closed", "half_open")})
    return ConnectionGc(node.pinned, replace(KEEP, tcp_closed=3600, half_open=3600), 60).sweep


def test_what_is_evicted_is_counted_anew(quick: Loaded, sweep: Callable[[], int]) -> None:
    program(quick, Schedule.LC, (1, 1))
    for port in range(2000, 2010):
        quick.open(port)
    for port in (2001, 2003, 2004):
        quick.send(port, "R")
    assert quick.numbers() == [(4, 1), (3, 2)]
    for port in (2001, 2002, 2006):
        for key in (quick.flow(port),):
            quick.node.pinned.map("connections").delete(key)
    assert quick.numbers() == [(4, 1), (3, 2)]
    sweep()
    assert sum(one for one, _ in quick.numbers()) == 5
    assert sum(one for _, one in quick.numbers()) == 2


def test_wrong_numbers_are_corrected(quick: Loaded, sweep: Callable[[], int]) -> None:
    program(quick, Schedule.LC, (1, 1, 1))
    for port in range(2000, 2003):
        quick.open(port)
    quick.put([(100, 7), (-5, 0), (0, 0)])
    sweep()
    assert quick.numbers() == [(1, 0)] * 3


def test_connections_that_began_before_their_service_counted_join(
    quick: Loaded, sweep: Callable[[], int]
) -> None:
    quick.program(Schedule.ROUND, (1, 1))
    assert [quick.open(port) for port in range(2000, 2004)] == [0, 1, 0, 1]
    quick.send(2000, "R")
    program(quick, Schedule.LC, (1, 1))
    assert quick.numbers() == [(0, 0)] * 2
    sweep()
    assert quick.numbers() == [(1, 1), (2, 0)]
    sweep()
    assert quick.numbers() == [(1, 1), (2, 0)]
    assert quick.open(2100) == 0
    quick.program(Schedule.ROUND, (1, 1))
    for port in (*range(2000, 2004), 2100):
        quick.remove(port)
    assert quick.numbers() == [(0, 0)] * 2


def test_entries_in_both_maps_are_counted(quick: Loaded, sweep: Callable[[], int]) -> None:
    program(quick, Schedule.LC, (1,))
    quick.open(2000)
    quick.node.half_open(100_000)
    quick.open(2001)
    quick.put([(9, 9)])
    sweep()
    assert quick.numbers() == [(2, 0)]


# -- several CPUs ---------------------------------------------------------------------------------


def on_all_cpus(work: Callable[[int], None]) -> None:
    """Do some work on every CPU at once; ``work`` gets the number of the CPU."""
    cpus = sorted(os.sched_getaffinity(0))

    def pinned(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        work(cpus.index(cpu))

    with ThreadPoolExecutor(len(cpus)) as pool:
        for done in [pool.submit(pinned, cpu) for cpu in cpus]:
            done.result()


def test_numbers_are_exact_when_cpus_count_at_once(quick: Loaded) -> None:
    program(quick, Schedule.WLC, WEIGHTS)

    def work(cpu: int) -> None:
        mine = range(2000 + 8000 * cpu, 2000 + 8000 * cpu + 800)
        for port in mine:
            quick.open(port)
            if port % 3 == 0:
                quick.send(port, "R")
        for port in mine:
            if port % 2:
                quick.remove(port)

    on_all_cpus(work)
    cpus = len(os.sched_getaffinity(0))
    left = [port for port in range(2000, 2800) if port % 2 == 0]
    ended = sum(port % 3 == 0 for port in (p + 8000 * c for c in range(cpus) for p in left))
    assert sum(one for one, _ in quick.numbers()) == cpus * len(left) - ended
    assert sum(one for _, one in quick.numbers()) == ended


def test_a_connection_that_all_cpus_end_at_once_is_taken_back_once(quick: Loaded) -> None:
    program(quick, Schedule.LC, (1,))
    ports = range(2000, 2400)
    for port in ports:
        quick.open(port)
    flows = [quick.flow(port) for port in ports]

    def end(_cpu: int) -> None:
        for port in ports:
            quick.send(port, "R")

    def collect(_cpu: int) -> None:
        for flow in flows:
            quick.node.collect(flow, force=True)

    on_all_cpus(end)
    assert quick.numbers() == [(0, len(ports))]
    on_all_cpus(collect)
    assert quick.numbers() == [(0, 0)]
