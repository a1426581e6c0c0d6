"""Entries of connected UDP sockets go when the sockets are closed, also where agents end early."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from bpfsvc.agent.flows.udp_cleanup import UdpCleanup
from bpfsvc.datapath.maps.udp_sockets import UdpSocketsMap
from tests.packets.node import Node

COOKIES = [(1 << 40) + number for number in range(3)]
"""No socket has such a cookie."""


def left(node: Node) -> int:
    """Return how many of the entries are there; other tests may have left others."""
    table = node.pinned.map("udp_sockets")
    return sum(table.lookup(cookie.to_bytes(8, "little")) is not None for cookie in COOKIES)


@pytest.fixture(autouse=True)
def _closed(node: Node) -> None:
    table = node.pinned.map("udp_sockets")
    for cookie in COOKIES:
        table.update(cookie.to_bytes(8, "little"), bytes(table.value_size))


def test_a_closed_socket_is_forgotten_at_the_second_look(node: Node) -> None:
    """At the first look it may be about to connect."""
    sockets = UdpSocketsMap(node.pinned)
    sockets.forget_closed()
    assert left(node) == len(COOKIES)
    sockets.forget_closed()
    assert left(node) == 0


def begin(node: Node, *, with_sockets: bool) -> None:
    """Have an agent start, and look again half a minute later."""
    planner = Mock()
    planner.applied_state.keys.return_value = []
    cleanup = UdpCleanup(planner, node.pinned, Mock(), Mock(), with_sockets=with_sockets)
    cleanup.restore()
    cleanup.tidy()


def test_the_first_look_is_when_an_agent_starts(node: Node) -> None:
    begin(node, with_sockets=True)
    assert left(node) == 0


def test_without_the_socket_lb_nothing_is_looked_at(node: Node) -> None:
    begin(node, with_sockets=False)
    assert left(node) == len(COOKIES)
