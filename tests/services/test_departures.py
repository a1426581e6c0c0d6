"""Endpoints that left: when their connections end, by a clock that the test sets."""

from __future__ import annotations

from socket import IPPROTO_TCP

from bpfsvc.base.address import pack
from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.scheduling.departures import SETTLED, Departed, Departures
from bpfsvc.services.scheduling.removal import Members

KEY = ("default", "web")
PORT = ServicePort(*KEY, "http", IPPROTO_TCP, 4)
IDS = {PORT: 7}
ONE, TWO = (pack("10.0.0.1"), 80), (pack("10.0.0.2"), 80)
AGAIN = 2


def members(seconds: int, *places: Place) -> Members:
    return Members(seconds, {PORT: frozenset(places)})


class Watched(Departures):
    """Departures of one Service."""

    def have(self, now: float, seconds: int, *places: Place) -> set[int]:
        return self.update(KEY, members(seconds, *places), IDS, now)

    def ended(self, now: float) -> set[Departed]:
        """Carry out what is due; return the endpoints whose connections end."""
        due = self.due(now)
        self.done(due, now)
        return {*due.first}


def test_a_reset_is_due_when_packets_that_had_found_the_endpoint_are_gone() -> None:
    """Sockets are looked for once more: a call may be interrupted before it connects one."""
    departures = Watched()
    departures.have(0, 0, ONE, TWO)
    departures.have(10, 0, ONE)
    assert departures.due(10) == ({}, {})
    at = departures.next_at
    assert at == 10 + SETTLED
    assert departures.due(at) == ({(7, TWO): 10 + SETTLED}, {})
    departures.done(departures.due(at), at)
    assert departures.next_at == at + AGAIN
    assert departures.due(at + AGAIN - 0.1) == ({}, {})
    assert departures.due(at + AGAIN) == ({}, {(7, TWO): 10 + SETTLED})
    departures.done(departures.due(at + AGAIN), at + AGAIN)
    assert departures.next_at is None


def test_what_could_not_be_carried_out_stays_due() -> None:
    departures = Watched()
    departures.have(0, 0, ONE, TWO)
    departures.have(10, 0, ONE)
    assert departures.due(11) == departures.due(12) == ({(7, TWO): 10 + SETTLED}, {})


def test_a_drain_is_due_after_its_time() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.have(20, 30, ONE)
    assert departures.ended(39.9) == set()
    assert departures.ended(40) == {(7, TWO)}


def test_an_endpoint_that_is_back_has_not_left() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.have(20, 30, ONE, TWO)
    assert departures.ended(1000) == set()
    departures.have(1000, 0, ONE)
    assert departures.ended(1001) == {(7, TWO)}
    departures.have(1001, 0, ONE, TWO)
    assert departures.next_at is None
    departures.have(2000, 30, ONE)
    assert departures.due(3000).first == {(7, TWO): 2000 + SETTLED}


def test_a_service_that_keeps_connections_again_ends_none() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.update(KEY, None, IDS, 20)
    assert departures.ended(1000) == set()
    assert departures.have(1000, 30, ONE) == {7}


def test_a_shorter_time_counts_from_its_change_and_a_longer_one_changes_nothing() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.have(20, 600, ONE)
    assert departures.ended(39) == set()
    departures.have(39, 0, ONE)
    assert departures.ended(39) == {(7, TWO)}


def test_only_what_is_seen_for_the_first_time_is_searched_for() -> None:
    departures = Watched()
    assert departures.have(0, 30, ONE) == {7}
    assert departures.have(1, 30, TWO) == set()
    assert departures.members({7, 8}) == {7: {TWO}}


def test_a_connection_that_is_found_at_the_start_has_the_whole_time() -> None:
    departures = Watched()
    departures.have(100, 30, ONE)
    departures.add({(7, TWO)}, 100, until=100)
    assert departures.ended(129) == set()
    assert departures.ended(130) == {(7, TWO)}


def test_of_an_endpoint_that_left_long_ago_a_reset_is_due_at_once() -> None:
    departures = Watched()
    departures.have(100, 0, ONE)
    departures.add({(7, TWO)}, 100, until=100)
    assert departures.ended(100) == {(7, TWO)}


def test_a_service_that_is_deleted_ends_none() -> None:
    departures = Watched()
    departures.have(0, 0, ONE)
    departures.update(KEY, None, {}, 10)
    assert departures.ended(1000) == set()


def test_a_port_that_is_not_in_the_kernel_is_not_followed() -> None:
    departures = Departures()
    assert departures.update(KEY, members(0, ONE), {}, 0) == set()
    assert departures.update(KEY, members(0, ONE), IDS, 0) == {7}
