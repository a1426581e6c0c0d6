"""The connection GC proposes pairs that may have ended, and leaves the others alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bpfsvc.agent.flows import connection_gc
from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.maps.gc_program import GcProgram
from tests.packets.node import Node
from tests.packets.packet import tcp
from tests.packets.peers import Peers
from tests.packets.test_gc_program import LIFETIMES, closed_masquerade, established

KEEP = Lifetimes(
    **{name.removesuffix("_seconds"): value for name, value in LIFETIMES.items()}, half_open=60
)

ALONE = 15
"""Seconds that an entry for replies lives longer than the entry for requests."""


@pytest.fixture
def sweep(node: Node) -> Callable[[], int]:
    return ConnectionGc(node.pinned, KEEP, 60).sweep


def test_a_live_connection_is_not_even_proposed(
    node: Node, peers: Peers, sweep: Callable[[], int]
) -> None:
    """Neither by the kernel's clock nor by the clock of the sweep."""
    established(node, peers)
    node.settings(**dict.fromkeys(LIFETIMES, 0))
    assert sweep() == 0
    assert node.count("connections") == 2


def test_both_entries_of_a_pair_are_removed_at_once(
    node: Node, peers: Peers, sweep: Callable[[], int]
) -> None:
    established(node, peers)
    node.age(7)
    assert sweep() == 1
    assert node.count("connections") == 0


def test_an_entry_for_replies_alone_is_removed_a_little_later(
    node: Node, peers: Peers, sweep: Callable[[], int]
) -> None:
    flow = established(node, peers)
    node.pinned.map("connections").delete(flow)
    node.age(7)
    assert sweep() == 0
    node.age(7 + ALONE)
    assert sweep() == 1
    assert node.count("connections") == 0


def test_a_closed_connection_is_removed_before_an_idle_one(
    node: Node, tcp_peers: Peers, sweep: Callable[[], int]
) -> None:
    established(node, tcp_peers)
    node.age(3)
    assert sweep() == 0
    node.forward(tcp(tcp_peers.client, tcp_peers.vip, "R"))
    node.age(3)
    assert sweep() == 1


def test_of_a_closed_connection_only_its_masquerade_port_is_kept(
    node: Node, tcp_peers: Peers, sweep: Callable[[], int]
) -> None:
    closed_masquerade(node, tcp_peers)
    node.age(8)
    assert sweep() == 1
    assert node.count("connections") == 2
    assert sweep() == 0
    node.age(61)
    assert sweep() == 1
    assert node.count("connections") == 0


def test_of_a_connection_that_its_client_closed_first_nothing_is_kept(
    node: Node, tcp_peers: Peers, sweep: Callable[[], int]
) -> None:
    closed_masquerade(node, tcp_peers, backend_first=False)
    node.age(8)
    assert sweep() == 2
    assert node.count("connections") == 0


def test_the_sweep_corrects_the_count_of_half_open_pairs(
    node: Node, peers: Peers, sweep: Callable[[], int]
) -> None:
    """Simultaneous packets may have counted one pair twice."""
    established(node, peers)
    node.half_open(1000)
    sweep()
    assert node.held() == 0
    peers.service(node, [peers.backend])
    node.forward(peers.opening(peers.external, peers.vip))
    assert node.held() == 1
    node.half_open(1000)
    sweep()
    assert node.held() == 1


def test_a_half_open_connection_of_many_is_removed_after_its_time_too(
    node: Node, peers: Peers, sweep: Callable[[], int]
) -> None:
    """The kernel evicts it only when the table is full: until then its port would not be new."""
    node.settings(**LIFETIMES, half_open_seconds=KEEP.half_open)
    peers.service(node, [peers.backend])
    node.half_open(1 << 20)
    peers.begin(node, peers.client, peers.vip, peers.backend)
    assert node.count("new_connections") == 2
    assert sweep() == 0
    node.age(KEEP.half_open + 1)
    assert sweep() == 1
    assert node.count("new_connections") == 0


def test_half_open_pairs_that_the_sweep_removes_are_not_counted_again(
    node: Node, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the room for half-open connections seems to be taken, until the next sweep."""
    monkeypatch.setattr(connection_gc, "_COUNT_SLACK", 1 << 30)
    node.settings(**LIFETIMES, half_open_seconds=KEEP.half_open)
    peers.service(node, [peers.backend])
    peers.begin(node, peers.client, peers.vip, peers.backend)
    assert node.held() == 1
    node.age(KEEP.half_open + 1)
    assert ConnectionGc(node.pinned, KEEP, 60).sweep() == 1
    assert node.held() == 0


def test_half_open_pairs_that_come_during_the_sweep_stay_counted(
    node: Node, peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    established(node, peers)

    def traffic(*_: object, **__: object) -> int:
        node.half_open(1000)
        return 0

    monkeypatch.setattr(GcProgram, "remove", traffic)
    ConnectionGc(node.pinned, KEEP, 60).sweep()
    assert node.held() == 1000


def test_the_busiest_backend_is_the_one_with_the_most_masqueraded_connections(
    node: Node, peers: Peers
) -> None:
    """Connections that keep their port, and those of other backends, are not counted with it."""
    gc = ConnectionGc(node.pinned, KEEP, 60)
    assert (gc.busiest_ports, gc.port_limit) == (0, 20_000)
    backends = [peers.backend, peers.other_backend]
    for name, backend, number in zip(("web", "other"), backends, (5, 2), strict=True):
        frontend = peers.vip if name == "web" else peers.other_vip
        peers.service(node, [backend], name, frontends=[frontend], masquerade=True)
        for port in range(3000, 3000 + number):
            client = peers.with_port(peers.external, port)
            peers.connect(node, client, frontend, backend)
    gc.sweep()
    assert gc.busiest_ports == 5


def test_connections_that_are_not_masqueraded_use_no_source_ports(node: Node, peers: Peers) -> None:
    gc = ConnectionGc(node.pinned, KEEP, 60)
    established(node, peers)
    gc.sweep()
    assert (node.count("connections"), gc.busiest_ports) == (2, 0)


def test_open_connections_are_counted_once_whatever_carries_their_replies(
    node: Node, tcp_peers: Peers
) -> None:
    """Those that are masqueraded have four entries, and those that a side is closing count not."""
    peers = tcp_peers
    gc = ConnectionGc(node.pinned, KEEP, 60)
    peers.service(node, [peers.backend], masquerade=True)
    clients = [peers.with_port(peers.external, port) for port in range(3000, 3005)]
    for client in clients:
        peers.connect(node, client, peers.vip, peers.backend)
    gc.sweep()
    (port,) = node.applied_state.snapshot()
    (counters,) = port.counter_ids
    assert gc.open_connections == {counters: 5}
    node.ingress(tcp(clients[0], peers.vip, "FA"))
    gc.sweep()
    assert gc.open_connections == {counters: 4}


def test_attempts_and_datagrams_are_no_open_connections(node: Node, peers: Peers) -> None:
    gc = ConnectionGc(node.pinned, KEEP, 60)
    peers.service(node, [peers.backend])
    node.forward(peers.opening(peers.external, peers.vip))
    gc.sweep()
    assert gc.open_connections == {}
