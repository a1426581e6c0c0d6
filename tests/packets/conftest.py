"""One node for all packet tests: compiling takes longer than all of them together."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import cast

import pytest
from _pytest.mark import ParameterSet

from bpfsvc.devtools.lab import sandbox
from tests.packets.builds import start
from tests.packets.cached_node import compiled
from tests.packets.fast_path import FastPathTestbed, fast_path, prepare
from tests.packets.loads import HALF_OPEN, Loaded
from tests.packets.node import Node
from tests.packets.peers import ALL_PEERS, SCTP_PEERS, TCP_PEERS, UDP_PEERS, Peers
from tests.packets.takeover import takeover
from tests.packets.uplink import Uplink, uplink

__all__ = ["compiled", "start", "takeover"]


def mostly_fast(all_peers: Sequence[Peers]) -> list[ParameterSet]:
    """Return parameters; ``make test`` takes each protocol over one family.

    The programs read a family in one place and a protocol in another: both kinds of code run, and
    the other pairs are slow tests. What a pair has for itself is tested by name.
    """
    first = {("TCP", 4), ("UDP", 6), ("SCTP", 4)}
    return [
        pytest.param(
            peers,
            id=str(peers),
            marks=[] if (peers.protocol, peers.family) in first else [pytest.mark.slow],
        )
        for peers in all_peers
    ]


@pytest.fixture(scope="session")
def loaded() -> Iterator[Node]:
    sandbox.require()
    node = Node(sandbox.BPF_ROOT / "packets")
    yield node
    node.pinned.close()


@pytest.fixture
def node(loaded: Node) -> Node:
    """A node without Services or connections."""
    loaded.reset()
    return loaded


@pytest.fixture
def without_lookup(node: Node) -> Iterator[Node]:
    """A node that drops every packet that it looks up.

    In the place of the program for that is the one that masquerades known connections.
    """
    steps = node.pinned.map("steps")
    first = struct.pack("=I", node.pinned.layout.constant("STEP_FIRST"))
    steps.update(first, struct.pack("=I", node.pinned.program("step_masquerade")))
    yield node
    steps.update(first, struct.pack("=I", node.pinned.program("step_first")))


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """Stay on one CPU: each has entries of its own in some maps."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


@pytest.fixture(params=mostly_fast(ALL_PEERS))
def peers(request: pytest.FixtureRequest) -> Peers:
    """All protocols over both families; in ``make test`` each protocol over one of them."""
    return cast(Peers, request.param)


@pytest.fixture(params=[peers for peers in ALL_PEERS if peers.family == 4], ids=str)
def ipv4_peers(request: pytest.FixtureRequest) -> Peers:
    """All protocols over IPv4."""
    return cast(Peers, request.param)


@pytest.fixture(params=[peers for peers in ALL_PEERS if peers.family == 6], ids=str)
def ipv6_peers(request: pytest.FixtureRequest) -> Peers:
    """All protocols over IPv6."""
    return cast(Peers, request.param)


@pytest.fixture(params=TCP_PEERS, ids=str)
def tcp_peers(request: pytest.FixtureRequest) -> Peers:
    """TCP over both families."""
    return cast(Peers, request.param)


@pytest.fixture(params=UDP_PEERS, ids=str)
def udp_peers(request: pytest.FixtureRequest) -> Peers:
    """UDP over both families."""
    return cast(Peers, request.param)


@pytest.fixture(params=SCTP_PEERS, ids=str)
def sctp_peers(request: pytest.FixtureRequest) -> Peers:
    """SCTP over both families."""
    return cast(Peers, request.param)


@pytest.fixture
def counted(node: Node, tcp_peers: Peers) -> Loaded:
    """A Service of TCP that counts loads, over both families."""
    node.half_open(HALF_OPEN)
    return Loaded(node, tcp_peers)


@pytest.fixture
def counted_ipv4(node: Node) -> Loaded:
    """The same over IPv4, for what does not depend on the family."""
    node.half_open(HALF_OPEN)
    return Loaded(node, TCP_PEERS[0])


@pytest.fixture(scope="module")
def fast_path_testbed(loaded: Node) -> Iterator[FastPathTestbed]:
    """One testbed for all tests of a module: tests only add routes to it."""
    with fast_path(loaded) as made:
        yield made


@pytest.fixture(params=mostly_fast(TCP_PEERS + UDP_PEERS))
def fast_peers(request: pytest.FixtureRequest) -> Peers:
    """The protocols that the fast path serves, as ``peers`` has them."""
    peers = request.param
    assert isinstance(peers, Peers)
    return peers


@pytest.fixture
def testbed(fast_path_testbed: FastPathTestbed, node: Node, fast_peers: Peers) -> FastPathTestbed:
    """The fast path's testbed with these peers, and the fast path turned on."""
    return prepared(fast_path_testbed, node, fast_peers)


@pytest.fixture
def tcp_testbed(
    fast_path_testbed: FastPathTestbed, node: Node, tcp_peers: Peers
) -> FastPathTestbed:
    """The same with TCP peers only."""
    return prepared(fast_path_testbed, node, tcp_peers)


@pytest.fixture
def udp_testbed(
    fast_path_testbed: FastPathTestbed, node: Node, udp_peers: Peers
) -> FastPathTestbed:
    """The same with UDP peers only."""
    return prepared(fast_path_testbed, node, udp_peers)


def prepared(fast_path_testbed: FastPathTestbed, node: Node, peers: Peers) -> FastPathTestbed:
    assert fast_path_testbed.node is node
    prepare(fast_path_testbed, peers)
    return fast_path_testbed


@pytest.fixture(scope="module")
def uplink_cables(loaded: Node) -> Iterator[Uplink]:
    """The cables of all tests of XDP."""
    with uplink(loaded) as made:
        yield made


@pytest.fixture
def xdp_uplink(uplink_cables: Uplink) -> Uplink:
    """An uplink of a node without Services or connections."""
    uplink_cables.node.reset()
    uplink_cables.serve(uplink_cables.near, uplink_cables.far)
    return uplink_cables
