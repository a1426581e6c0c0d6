"""Which connections end when endpoints leave, and what the agent's thread does meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from socket import IPPROTO_TCP
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bpfsvc.agent.flows import endpoint_removal
from bpfsvc.agent.flows.endpoint_removal import EndpointRemoval
from bpfsvc.base.address import pack
from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.maps.tcp_connections import TcpConnection
from bpfsvc.datapath.resets import Reset
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.view import NOTHING
from bpfsvc.services.scheduling.departures import SETTLED, Departed
from bpfsvc.services.scheduling.removal import Members

WEB, OTHER = ("default", "web"), ("default", "other")
IDS = {WEB: 7, OTHER: 8}
ONE, TWO = (pack("10.0.0.1"), 80), (pack("10.0.0.2"), 80)
CLIENT, VIP = pack("10.9.0.9"), (pack("10.96.0.1"), 80)


class Connections:
    """The connections of a node, in the place of its maps; they are read when that is allowed."""

    def __init__(self) -> None:
        self.all: list[tuple[int, TcpConnection]] = []
        self.removed: list[TcpConnection] = []
        self.readings = 0
        self.may_be_read = threading.Event()
        self.may_be_read.set()
        self.failures = 0

    def open(self, service: int, backend: Place, created: float) -> TcpConnection:
        """Add a connection."""
        client = CLIENT, 1000 + len(self.all)
        connection = TcpConnection(client, VIP, client, backend, True, created)
        self.all.append((service, connection))
        return connection

    def to(
        self, services: Collection[int], is_wanted: Callable[[Departed], bool]
    ) -> list[tuple[Departed, TcpConnection]]:
        self.readings += 1
        assert self.may_be_read.wait(60)
        if self.failures:
            self.failures -= 1
            raise KernelError("map connections: cannot read", "")
        pairs = (
            ((service, connection.backend), connection)
            for service, connection in self.all
            if service in services
        )
        return [(departed, connection) for departed, connection in pairs if is_wanted(departed)]

    def remove(self, connections: Collection[TcpConnection]) -> list[Reset]:
        self.removed += connections
        self.all = [
            (service, connection)
            for service, connection in self.all
            if connection not in connections
        ]
        return []


class Node:
    """A removal without a kernel. Services are TCP ports of one Service each."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.passed = 0.0
        """Seconds that the test has let pass, beside those that pass anyway."""
        self.planner = SimpleNamespace(refused={}, applied_state=SimpleNamespace(of=self._applied))
        self._ports: dict[ServiceKey, dict[ServicePort, SimpleNamespace]] = {}
        self.removal = EndpointRemoval(
            cast(Planner, self.planner),
            cast(Any, None),
            Observer(),
            with_sockets=False,
            clock=self.now,
        )

    def now(self) -> float:
        """Return the time."""
        return time.monotonic() + self.passed

    def have(self, key: ServiceKey, seconds: int | None, *places: Place) -> None:
        """Hand on that a Service has these endpoints; ``seconds``: None: it keeps connections."""
        port = ServicePort(*key, "http", IPPROTO_TCP, 4)
        members = None if seconds is None else Members(seconds, {port: frozenset(places)})
        self._ports[key] = {port: SimpleNamespace(service_id=IDS[key])}
        self.removal.follow({key: NOTHING._replace(members=members)})

    def _applied(self, key: ServiceKey) -> dict[ServicePort, SimpleNamespace]:
        return self._ports[key]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    connections = Connections()
    monkeypatch.setattr(endpoint_removal, "TcpConnections", lambda *_: connections)
    monkeypatch.setattr(endpoint_removal, "send", lambda _: 0)
    monkeypatch.setattr(endpoint_removal, "_RETRY", 0.01)
    made = Node(connections)
    yield made
    connections.may_be_read.set()
    made.removal.stop()


def test_a_service_that_keeps_connections_costs_nothing(node: Node) -> None:
    node.have(WEB, None, ONE, TWO)
    node.have(WEB, None, ONE)
    assert not [thread for thread in threading.enumerate() if thread.name == "endpoint removal"]


def test_connections_to_an_endpoint_that_left_end_by_one_reading(node: Node) -> None:
    over = node.connections.open(7, TWO, created=0)
    for service, address in ((7, ONE), (8, TWO)):
        node.connections.open(service, address, created=0)
    node.have(WEB, 0, ONE, TWO)
    wait(lambda: node.connections.readings == 1, "what is there is searched")
    node.have(WEB, 0, ONE)
    wait(lambda: node.connections.removed == [over], "the connection ends")
    assert node.connections.readings == 2


def test_what_an_earlier_agent_left_ends_by_the_reading_that_finds_it(node: Node) -> None:
    over = node.connections.open(7, TWO, created=0)
    node.have(WEB, 0, ONE)
    wait(lambda: node.connections.removed == [over], "the connection ends")
    assert node.connections.readings == 1


def test_the_agent_goes_on_while_the_table_is_read(node: Node) -> None:
    """Changes of this and of other Services are noted meanwhile, and count afterwards."""
    over = [node.connections.open(7, TWO, created=0), node.connections.open(8, TWO, created=0)]
    node.connections.may_be_read.clear()
    node.have(WEB, 0, ONE)
    wait(lambda: node.connections.readings == 1, "the table is being read")
    node.have(OTHER, 0, ONE)
    assert node.connections.removed == []
    node.connections.may_be_read.set()
    wait(lambda: node.connections.removed == over, "both end")


def test_an_endpoint_that_is_back_keeps_connections_that_came_since(node: Node) -> None:
    now = node.now()
    node.have(WEB, 0, ONE, TWO)
    wait(lambda: node.connections.readings == 1, "what is there is searched")
    node.connections.may_be_read.clear()
    before = node.connections.open(7, TWO, created=now)
    node.have(WEB, 0, ONE)
    wait(lambda: node.connections.readings == 2, "the table is being read")
    node.have(WEB, 0, ONE, TWO)
    since = node.connections.open(7, TWO, created=node.now() + SETTLED)
    node.connections.may_be_read.set()
    wait(lambda: node.connections.removed == [before], "the older one ends")
    assert node.connections.all == [(7, since)]


def test_an_endpoint_that_comes_while_the_first_search_runs_keeps_its_connections(
    node: Node,
) -> None:
    """It has not left: the Service did not have it yet when the search began."""
    node.connections.may_be_read.clear()
    before = node.connections.open(7, TWO, created=0)
    node.have(WEB, 0, ONE)
    wait(lambda: node.connections.readings == 1, "the table is being read")
    since = node.connections.open(7, TWO, created=node.now())
    node.have(WEB, 0, ONE, TWO)
    node.connections.may_be_read.set()
    wait(lambda: node.connections.removed == [before], "the older one ends")
    assert node.connections.all == [(7, since)]


def test_an_endpoint_that_is_back_in_time_keeps_its_connections_however_late_that_is_noted(
    node: Node,
) -> None:
    kept = node.connections.open(7, TWO, created=0)
    node.have(WEB, 1, ONE, TWO)
    wait(lambda: node.connections.readings == 1, "what is there is searched")
    node.have(OTHER, 0, ONE)
    wait(lambda: node.connections.readings == 2, "what is there is searched")
    node.have(WEB, 1, ONE)
    over = node.connections.open(8, ONE, created=0)
    node.connections.may_be_read.clear()
    node.have(OTHER, 0)
    wait(lambda: node.connections.readings == 3, "the table is being read")
    node.have(OTHER, 0, TWO)
    node.have(WEB, 1, ONE, TWO)
    node.passed += 5
    node.connections.may_be_read.set()
    wait(lambda: node.connections.removed == [over], "the connection of the other Service ends")
    node.have(OTHER, 0)
    wait(lambda: node.connections.readings >= 4, "the next endpoint has left")
    assert node.connections.all == [(7, kept)]


def test_after_a_failure_it_is_tried_again(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.connections.failures = 2
    over = node.connections.open(7, TWO, created=0)
    with caplog.at_level(logging.WARNING, "bpfsvc"):
        node.have(WEB, 0, ONE)
        wait(lambda: node.connections.removed == [over], "the connection ends")
    assert (
        caplog.messages
        == ["connections to endpoints that left cannot be ended yet: map connections: cannot read"]
        * 2
    )
