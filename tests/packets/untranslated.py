"""Connections that another node has masqueraded, on the backend's node: opened, and looked at."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.packets.fast_path import FastPathTestbed, forwarded
from tests.packets.node import Node
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers

PORT = 20007
"""A port of the masquerade range."""

RANGE = {"first": 20000, "ports": 20000}


class Untranslated(NamedTuple):
    """A connection of a node's port to the pod behind ``pod1``."""

    testbed: FastPathTestbed
    peers: Peers
    client: str
    pod: str

    def opening(self) -> None:
        """Send a SYN and its answer, which take the fast path as they are."""
        syn, answer = tcp(self.client, self.pod), tcp(self.pod, self.client, "SA")
        assert forwarded(self.testbed.to_peer("eth0", syn, to="pod1"), syn)
        back = self.testbed.to_neighbour("pod1", answer)
        assert forwarded(back, answer)
        assert same(self.testbed.egress("eth0", back), back)

    def both_ways(self, payload: bytes = b"hello") -> None:
        """Send data in both directions by the fast path."""
        there = self.peers.data(self.client, self.pod, payload)
        assert forwarded(self.testbed.to_peer("eth0", there, to="pod1"), there)
        back = self.peers.data(self.pod, self.client, payload)
        assert forwarded(self.testbed.to_neighbour("pod1", back), back)

    def by_stack(self) -> None:
        """Send data in both directions, which the stack gets, and which nothing changes."""
        for by, leaves, ends in (
            ("eth0", "pod1", (self.client, self.pod)),
            ("pod1", "eth0", (self.pod, self.client)),
        ):
            packet = self.peers.data(*ends)
            assert same(self.testbed.to_stack(by, packet), packet)
            assert same(self.testbed.egress(leaves, packet, came_by=by), packet)

    def close(self) -> None:
        """End it from both sides, by the fast path."""
        for by, ends in (("eth0", (self.client, self.pod)), ("pod1", (self.pod, self.client))):
            fin = tcp(*ends, "FA")
            assert (
                forwarded(self.testbed.to_neighbour(by, fin), fin)
                if by == "pod1"
                else (forwarded(self.testbed.to_peer(by, fin, to="pod1"), fin))
            )


def prepared(testbed: FastPathTestbed, peers: Peers, **settings: int) -> Untranslated:
    """Have the programs know the pod as an endpoint of a Service."""
    pod = peers.other_backend
    peers.service(testbed.node, [pod])
    count_untranslated(testbed.node, 0)
    testbed.node.settings(**({**RANGE, "fast_path": 1, "fast_outside": 1} | settings))
    testbed.forget_routes()
    return Untranslated(testbed, peers, peers.with_port(peers.external, PORT), pod)


def opened(testbed: FastPathTestbed, peers: Peers) -> Untranslated:
    """Open such a connection, all of it by the fast path."""
    ready = prepared(testbed, peers)
    ready.opening()
    acknowledgement = tcp(ready.client, ready.pod, "A")
    assert forwarded(testbed.to_peer("eth0", acknowledgement, to="pod1"), acknowledgement)
    return ready


def count_untranslated(node: Node, pairs: int) -> None:
    """Set the programs' count of such connections."""
    node.pinned.map("untranslated").update(bytes(4), struct.pack("=q", pairs))


def untranslated(node: Node) -> int:
    """Return the programs' count of such connections."""
    raw = node.pinned.map("untranslated").lookup(bytes(4)) or b""
    return int(struct.unpack("=q", raw)[0])
