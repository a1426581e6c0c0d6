"""A SYN that is sent again to a backend that is in quarantine by then goes to another one."""

from __future__ import annotations

import pytest

from bpfsvc.services.scheduling.quarantine import Outcome
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.icmp_errors import error
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers, address_of
from tests.packets.test_new_connections import MANY
from tests.packets.test_trials import FAILED, Tried


@pytest.fixture
def tried(node: Node, tcp_peers: Peers) -> Tried:
    return Tried(node, tcp_peers)


@pytest.fixture(params=["plain", "masqueraded", "masqueraded, one of many"])
def opened(request: pytest.FixtureRequest, tried: Tried) -> Tried:
    """A SYN has gone to a backend that is in quarantine now.

    With many half-open connections, new ones are where the kernel evicts.
    """
    tried.node.half_open(MANY if request.param.endswith("many") else 0)
    tried.masquerade = request.param != "plain"
    tried.program(tried.sick[:1], tried.well)
    assert tried.open() == tried.sick[0]
    tried.away()
    return tried


def older(tried: Tried) -> None:
    for name in ("connections", "new_connections"):
        tried.later(1, name)


def moved(tried: Tried) -> int:
    return tried.node.counter("connections_moved")


def states(tried: Tried) -> tuple[int, int, int]:
    """Return what there is of connections: entries, those established, and the pairs counted."""
    return (*tried.node.states(), tried.node.held())


def test_it_goes_to_another_backend_and_leaves_nothing_behind(opened: Tried) -> None:
    before = states(opened)
    older(opened)
    assert opened.open() == opened.well
    assert moved(opened) == 1
    assert opened.node.counter("connections_reopened") == 0
    assert states(opened) == before
    assert opened.taken() == {opened.counters(): FAILED}
    older(opened)
    assert opened.open() == opened.well
    assert moved(opened) == 1


@pytest.mark.parametrize("flags", ["SA", "SF", "SR"])
def test_a_packet_that_opens_nothing_moves_nothing(opened: Tried, flags: str) -> None:
    before = states(opened)
    older(opened)
    opened.node.ingress(tcp(opened.client(0), opened.peers.vip, flags))
    assert moved(opened) == 0
    assert states(opened) == before


def test_its_connection_works(opened: Tried) -> None:
    older(opened)
    opened.open()
    client, vip = opened.client(0), opened.peers.vip
    back = opened.node.forward(tcp(opened.well, opened.seen, "SA"))
    assert same(back, tcp(vip, client, "SA"))
    out = opened.node.forward(tcp(client, vip, "A"))
    assert same(out, tcp(opened.seen, opened.well, "A"))
    assert opened.taken()[opened.counters(opened.well)] == Outcome(0, 1)


@pytest.mark.parametrize("flags", ["SA", "RA"])
def test_a_late_answer_of_the_old_backend_is_not_the_new_ones(opened: Tried, flags: str) -> None:
    """Its receiver, the client or this node, knows no such connection and resets that."""
    was = opened.seen
    older(opened)
    opened.open()
    now = states(opened)
    late = tcp(opened.sick[0], was, flags)
    assert same(opened.node.forward(late), late)
    assert states(opened) == now
    back = opened.node.forward(tcp(opened.well, opened.seen, "SA"))
    assert same(back, tcp(opened.peers.vip, opened.client(0), "SA"))
    opened.send("A")
    assert opened.taken()[opened.counters(opened.well)] == Outcome(0, 1)


def test_what_the_client_says_to_the_old_backend_by_its_own_address_passes(opened: Tried) -> None:
    older(opened)
    opened.open()
    now = states(opened)
    reset = tcp(opened.client(0), opened.sick[0], "R")
    assert same(opened.node.forward(reset), reset)
    assert states(opened) == now


def test_a_third_syn_too(opened: Tried) -> None:
    opened.shown.set({})
    older(opened)
    assert opened.open() == opened.sick[0]
    opened.away()
    older(opened)
    assert opened.open() == opened.well
    assert opened.taken() == {opened.counters(): FAILED}


def test_after_an_icmp_error_too(opened: Tried) -> None:
    about = tcp(opened.seen, opened.sick[0])
    source, to = address_of(opened.sick[0]), address_of(opened.seen)
    opened.node.forward(error(source, to, about, "host unreachable"))
    older(opened)
    assert opened.open() == opened.well
    assert opened.taken() == {opened.counters(): FAILED}


def test_to_a_backend_that_has_answered_it_stays(opened: Tried) -> None:
    opened.answer("SA")
    older(opened)
    assert opened.open() == opened.sick[0]
    assert moved(opened) == 0


def test_a_second_copy_of_a_syn_stays(opened: Tried) -> None:
    assert opened.open() == opened.sick[0]
    assert moved(opened) == 0


def test_to_a_backend_that_is_not_in_quarantine_it_stays(opened: Tried) -> None:
    opened.shown.set({})
    for _ in range(3):
        older(opened)
        assert opened.open() == opened.sick[0]
    assert moved(opened) == 0


def test_of_a_service_that_does_not_ask_for_it_it_stays(tried: Tried) -> None:
    tried.program(tried.sick[:1], tried.well, watched=False)
    tried.open()
    tried.program([tried.well], tried.sick[0], watched=False)
    tried.shown.set({tried.counters(): 1e9})
    for _ in range(3):
        older(tried)
        assert tried.open() == tried.sick[0]
    assert moved(tried) == 0


def test_it_leaves_the_load_of_the_old_backend(tried: Tried) -> None:
    tried.program(tried.sick[:1], tried.well, schedule=Schedule.LC)
    tried.open()
    tried.program([tried.well], tried.sick[0], schedule=Schedule.LC)
    tried.shown.set({tried.counters(): 1e9})
    assert (load(tried, tried.sick[0]), load(tried, tried.well)) == (1, 0)
    older(tried)
    tried.open()
    assert (load(tried, tried.sick[0]), load(tried, tried.well)) == (0, 1)


def load(tried: Tried, backend: str) -> int:
    """Return the connections of a backend, active ones."""
    loads = tried.node.pinned.map("backend_loads")
    raw = loads.lookup(tried.counters(backend).to_bytes(4, "little")) or b""
    return int.from_bytes(raw[:8], "little")
