"""How long endpoints that served UDP have entries: no longer than a choice of them is fresh."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from bpfsvc.datapath.maps.udp_endpoints import UdpEndpointsMap
from tests.packets.node import Node
from tests.packets.packet import address_port

STAYS, LEAVES = ((1, address_port(text)) for text in ("10.0.1.2:53", "10.0.1.3:53"))


@pytest.fixture
def endpoints(node: Node) -> Iterator[UdpEndpointsMap]:
    """Two endpoints that serve."""
    opened = UdpEndpointsMap(node.pinned)
    opened.change([STAYS, LEAVES], [])
    yield opened
    node.delete_entries("udp_serving")


def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all choices grow old."""
    now = time.monotonic()
    monkeypatch.setattr("bpfsvc.datapath.maps.udp_endpoints.time.monotonic", lambda: now + 10)


def test_an_endpoint_that_left_is_known_as_such_while_choices_of_it_are_fresh(
    node: Node, endpoints: UdpEndpointsMap
) -> None:
    endpoints.change([], [LEAVES])
    endpoints.forget_left()
    assert (node.count("udp_serving"), list(endpoints.serving())) == (2, [STAYS])


def test_an_endpoint_that_left_is_forgotten_when_no_choice_of_it_is_fresh(
    node: Node, endpoints: UdpEndpointsMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints.change([], [LEAVES])
    later(monkeypatch)
    endpoints.forget_left()
    assert (node.count("udp_serving"), list(endpoints.serving())) == (1, [STAYS])


def test_an_endpoint_that_came_back_is_not_forgotten(
    endpoints: UdpEndpointsMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoints.change([], [LEAVES])
    endpoints.change([LEAVES], [])
    later(monkeypatch)
    endpoints.forget_left()
    assert set(endpoints.serving()) == {STAYS, LEAVES}


def test_what_an_earlier_agent_left_is_forgotten_by_a_repair(
    node: Node, endpoints: UdpEndpointsMap
) -> None:
    endpoints.change([], [LEAVES])
    assert UdpEndpointsMap(node.pinned).settle({STAYS}) == 0
    assert node.count("udp_serving") == 1
