"""Endpoints that left: when their connections end, by a clock that the test sets."""

from __future__ import annotations

from socket import IPPROTO_TCP

from bpfsvc.base.address import pack
from bpfsvc.services.departures import Departures
from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.removal import Members

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


def test_a_reset_is_due_at_once_and_once_more() -> None:
    """The second time is for connections that were being opened."""
    departures = Watched()
    departures.have(0, 0, ONE, TWO)
    departures.have(10, 0, ONE)
    assert departures.due(10) == {(7, TWO)}
    assert departures.due(10 + AGAIN - 1) == set()
    assert departures.due(10 + AGAIN) == {(7, TWO)}
    assert departures.due(1000) == set()


def test_a_drain_is_due_after_its_time() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.have(20, 30, ONE)
    assert departures.due(39.9) == set()
    assert departures.due(40) == {(7, TWO)}


def test_an_endpoint_that_is_back_has_not_left() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.have(20, 30, ONE, TWO)
    assert departures.due(1000) == set()
    departures.have(1000, 0, ONE)
    departures.due(1000)
    departures.have(1001, 0, ONE, TWO)
    assert departures.due(1000 + AGAIN) == set()


def test_a_service_that_keeps_connections_again_ends_none() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.update(KEY, None, IDS, 20)
    assert departures.due(1000) == set()
    assert departures.have(1000, 30, ONE) == {7}


def test_a_shorter_time_counts_from_its_change_and_a_longer_one_changes_nothing() -> None:
    departures = Watched()
    departures.have(0, 30, ONE, TWO)
    departures.have(10, 30, ONE)
    departures.have(20, 600, ONE)
    assert departures.due(39) == set()
    departures.have(39, 0, ONE)
    assert departures.due(39) == {(7, TWO)}


def test_only_what_is_seen_for_the_first_time_is_searched_for() -> None:
    departures = Watched()
    assert departures.have(0, 30, ONE) == {7}
    assert departures.have(1, 30, TWO) == set()
    assert departures.unknown({(7, ONE), (7, TWO), (8, ONE)}) == {(7, ONE)}


def test_a_connection_that_is_found_at_the_start_has_the_whole_time() -> None:
    departures = Watched()
    departures.have(100, 30, ONE)
    departures.add(departures.unknown({(7, TWO)}), 100)
    assert departures.due(129) == set()
    assert departures.due(130) == {(7, TWO)}


def test_a_service_that_is_deleted_ends_none() -> None:
    departures = Watched()
    departures.have(0, 0, ONE)
    departures.update(KEY, None, {}, 10)
    assert departures.due(1000) == set()


def test_a_port_that_is_not_in_the_kernel_is_not_followed() -> None:
    departures = Departures()
    assert departures.update(KEY, members(0, ONE), {}, 0) == set()
    assert departures.update(KEY, members(0, ONE), IDS, 0) == {7}
