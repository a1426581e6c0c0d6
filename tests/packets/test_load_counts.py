"""Connections are counted for their backends as ip_vs counts them, whatever becomes of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.services.entries import PortEntries
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.loads import WEIGHTS, Loaded, program
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers
from tests.packets.test_connection_gc import KEEP


def test_a_connection_counts_from_its_first_packet_to_its_end(counted: Loaded) -> None:
    """Active while TCP opens it and has it open, then inactive, then gone."""
    program(counted, Schedule.LC, (1,))
    counted.open(2000)
    assert counted.numbers() == [(1, 0)]
    counted.open(2000)
    counted.answer(2000, 0, "SA")
    counted.send(2000, "A")
    assert counted.numbers() == [(1, 0)]
    counted.answer(2000, 0, "FA")
    assert counted.numbers() == [(0, 1)]
    counted.send(2000, "FA")
    counted.send(2000, "R")
    assert counted.numbers() == [(0, 1)]
    counted.remove(2000)
    assert counted.numbers() == [(0, 0)]


@pytest.mark.parametrize("hook", ["ingress", "egress"])
def test_the_collector_takes_a_connection_back_by_either_entry(counted: Loaded, hook: str) -> None:
    program(counted, Schedule.LC, (1,))
    counted.open(2000)
    client, backend = counted.client(2000), counted.backends[0]
    packet = tcp(client, counted.peers.vip) if hook == "ingress" else tcp(backend, client)
    assert counted.node.collect(counted.node.flow(hook, packet), force=True) == 1
    assert counted.numbers() == [(0, 0)]


def test_a_closed_connection_that_begins_again_counts_once(counted: Loaded) -> None:
    program(counted, Schedule.LC, (1, 1))
    counted.open(2000)
    counted.answer(2000, 0, "SA")
    counted.send(2000, "A")
    counted.send(2000, "FA")
    counted.answer(2000, 0, "FA")
    assert counted.numbers() == [(0, 1), (0, 0)]
    assert counted.open(2001) == 1
    assert counted.open(2000) == 0
    assert counted.numbers() == [(1, 0), (1, 0)]


def test_a_reset_that_was_none_is_taken_back(counted: Loaded) -> None:
    """Before the client's acknowledgement any reset counts, and that shows that it was forged."""
    program(counted, Schedule.LC, (1,))
    counted.open(2000)
    counted.answer(2000, 0, "SA")
    counted.answer(2000, 0, "R")
    assert counted.numbers() == [(0, 1)]
    counted.send(2000, "A")
    assert counted.numbers() == [(1, 0)]


def test_udp_is_inactive_and_sctp_is_active_when_it_is_established(
    node: Node, peers: Peers
) -> None:
    if peers.protocol == "TCP":
        return
    service = Loaded(node, peers)
    program(service, Schedule.LC, (1,))
    seen = peers.begin(node, peers.client, peers.vip, service.backends[0])
    assert service.numbers() == [(0, 1)]
    comes, goes = peers.proof(peers.client, peers.vip, service.backends[0], seen)
    assert same(node.forward(comes), goes)
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


def test_other_schedules_count_nothing(counted_ipv4: Loaded) -> None:
    counted_ipv4.program(Schedule.ROUND, (1, 1))
    for port in range(2000, 2010):
        counted_ipv4.open(port)
    counted_ipv4.send(2000, "R")
    counted_ipv4.remove(2001)
    assert counted_ipv4.numbers() == [(0, 0)] * 2


def test_a_connection_that_moves_when_it_is_established_counts_once(counted_ipv4: Loaded) -> None:
    program(counted_ipv4, Schedule.LC, (1,))
    counted_ipv4.node.half_open(100_000)
    counted_ipv4.open(2000)
    assert counted_ipv4.node.count("new_connections") == 2
    counted_ipv4.answer(2000, 0, "SA")
    counted_ipv4.send(2000, "A")
    assert counted_ipv4.node.count("new_connections") == 0
    assert counted_ipv4.numbers() == [(1, 0)]
    counted_ipv4.send(2000, "R")
    counted_ipv4.remove(2000)
    assert counted_ipv4.numbers() == [(0, 0)]


# -- counting anew --------------------------------------------------------------------------------


@pytest.fixture
def sweep(node: Node) -> Callable[[], int]:
    node.settings(**{f"{name}_seconds": 3600 for name in ("tcp_closed", "half_open")})
    return ConnectionGc(node.pinned, replace(KEEP, tcp_closed=3600, half_open=3600), 60).sweep


def test_what_is_evicted_is_counted_anew(counted_ipv4: Loaded, sweep: Callable[[], int]) -> None:
    program(counted_ipv4, Schedule.LC, (1, 1))
    for port in range(2000, 2010):
        counted_ipv4.open(port)
    for port in (2001, 2003, 2004):
        counted_ipv4.send(port, "R")
    assert counted_ipv4.numbers() == [(4, 1), (3, 2)]
    for port in (2001, 2002, 2006):
        for key in (counted_ipv4.flow(port),):
            counted_ipv4.node.pinned.map("connections").delete(key)
    assert counted_ipv4.numbers() == [(4, 1), (3, 2)]
    sweep()
    assert sum(one for one, _ in counted_ipv4.numbers()) == 5
    assert sum(one for _, one in counted_ipv4.numbers()) == 2


def test_wrong_numbers_are_corrected(counted_ipv4: Loaded, sweep: Callable[[], int]) -> None:
    program(counted_ipv4, Schedule.LC, (1, 1, 1))
    for port in range(2000, 2003):
        counted_ipv4.open(port)
    counted_ipv4.put([(100, 7), (-5, 0), (0, 0)])
    sweep()
    assert counted_ipv4.numbers() == [(1, 0)] * 3


def test_connections_that_began_before_their_service_counted_join(
    counted_ipv4: Loaded, sweep: Callable[[], int]
) -> None:
    counted_ipv4.program(Schedule.ROUND, (1, 1))
    assert [counted_ipv4.open(port) for port in range(2000, 2004)] == [0, 1, 0, 1]
    counted_ipv4.send(2000, "R")
    program(counted_ipv4, Schedule.LC, (1, 1))
    assert counted_ipv4.numbers() == [(0, 0)] * 2
    sweep()
    assert counted_ipv4.numbers() == [(1, 1), (2, 0)]
    sweep()
    assert counted_ipv4.numbers() == [(1, 1), (2, 0)]
    assert counted_ipv4.open(2100) == 0
    counted_ipv4.program(Schedule.ROUND, (1, 1))
    for port in (*range(2000, 2004), 2100):
        counted_ipv4.remove(port)
    assert counted_ipv4.numbers() == [(0, 0)] * 2


def test_entries_in_both_maps_are_counted(counted_ipv4: Loaded, sweep: Callable[[], int]) -> None:
    program(counted_ipv4, Schedule.LC, (1,))
    counted_ipv4.open(2000)
    counted_ipv4.node.half_open(100_000)
    counted_ipv4.open(2001)
    counted_ipv4.put([(9, 9)])
    sweep()
    assert counted_ipv4.numbers() == [(2, 0)]


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


def test_numbers_are_exact_when_cpus_count_at_once(counted_ipv4: Loaded) -> None:
    program(counted_ipv4, Schedule.WLC, WEIGHTS)

    def work(cpu: int) -> None:
        mine = range(2000 + 8000 * cpu, 2000 + 8000 * cpu + 800)
        for port in mine:
            counted_ipv4.open(port)
            if port % 3 == 0:
                counted_ipv4.send(port, "R")
        for port in mine:
            if port % 2:
                counted_ipv4.remove(port)

    on_all_cpus(work)
    cpus = len(os.sched_getaffinity(0))
    left = [port for port in range(2000, 2800) if port % 2 == 0]
    ended = sum(port % 3 == 0 for port in (p + 8000 * c for c in range(cpus) for p in left))
    assert sum(one for one, _ in counted_ipv4.numbers()) == cpus * len(left) - ended
    assert sum(one for _, one in counted_ipv4.numbers()) == ended


def test_a_connection_that_all_cpus_end_at_once_is_taken_back_once(counted_ipv4: Loaded) -> None:
    program(counted_ipv4, Schedule.LC, (1,))
    ports = range(2000, 2400)
    for port in ports:
        counted_ipv4.open(port)
    flows = [counted_ipv4.flow(port) for port in ports]

    def end(_cpu: int) -> None:
        for port in ports:
            counted_ipv4.send(port, "R")

    def collect(_cpu: int) -> None:
        for flow in flows:
            counted_ipv4.node.collect(flow, force=True)

    on_all_cpus(end)
    assert counted_ipv4.numbers() == [(0, len(ports))]
    on_all_cpus(collect)
    assert counted_ipv4.numbers() == [(0, 0)]
