"""A node whose build is replaced by a newer one, whose connections have another layout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scapy.packet import Packet

from bpfsvc.datapath.loader.shared_maps import CONNECTIONS
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import Pinned
from tests.packets.builds import FIELD, Start, build, states
from tests.packets.node import SIZES, UNSPEC, Node
from tests.packets.packet import same
from tests.packets.peers import ALL_PEERS, Peers


class Takeover:
    """A node with an old and a new build, and clients of a Service of each kind of peers."""

    def __init__(self, node: Node, newer: Callable[[], None]) -> None:
        self.node, self.newer = node, newer
        self.old = self.new = node.pinned
        for peers in ALL_PEERS:
            peers.service(node, [peers.backend], str(peers))

    def load(self) -> None:
        """Load the new build, which copies what there is; its programs call the old ones."""
        self.newer()
        self.new = self.node.pinned
        self.node.installation.attach_begins()
        self.node.installation.call_replaced()
        self.settle("TAKEOVER_ATTACHING")

    def settle(self, phase: str) -> None:
        """Tell the new programs how far it is."""
        with self.at(self.new):
            self.node.settings(takeover=self.new.layout.constant(phase))

    def take_over(self) -> None:
        """Have the new programs serve."""
        self.node.installation.take_over()
        self.settle("TAKEOVER_ATTACHED")

    def open_at_last(self, peers: Peers) -> None:
        """Load the new build, copy all, and have the old programs open a connection after that."""
        self.load()
        self.node.installation.take_over()
        with self.at(self.old):
            peers.connect(self.node, peers.client, peers.vip, peers.backend)

    def begin(self, *some: Peers) -> None:
        """Have clients begin connections, which are in a table of their own until established."""
        self.node.half_open(1 << 20)
        for peers in some:
            peers.begin(self.node, peers.client, peers.vip, peers.backend)

    def establish(self, *some: Peers) -> None:
        """Establish the connections that clients have begun."""
        for peers in some:
            comes, goes = peers.proof(peers.client, peers.vip, peers.backend, peers.client)
            assert same(self.node.forward(comes), goes)

    @contextmanager
    def at(self, pinned: Pinned) -> Iterator[None]:
        """Run the programs of a build, and read its maps."""
        before, self.node.pinned = self.node.pinned, pinned
        yield
        self.node.pinned = before

    def passes(self, packet: Packet, wanted: Packet, ingress: Pinned, egress: Pinned) -> bool:
        """True if a packet leaves as another one, by the programs of these builds."""
        with self.at(ingress):
            verdict, routed = self.node.run("ingress", packet, arrived=self.node.interface)
        if verdict != UNSPEC:
            return False
        with self.at(egress):
            verdict, left = self.node.run("egress", routed, arrived=self.node.interface)
        return verdict == UNSPEC and same(left, wanted)

    def works(self, peers: Peers, ingress: Pinned, egress: Pinned) -> bool:
        """True if a connection works that is not masqueraded."""
        client, vip, backend = peers.client, peers.vip, peers.backend
        sent = peers.data(client, vip), peers.data(client, backend)
        answered = peers.data(backend, client), peers.data(vip, client)
        return all(self.passes(*packets, ingress, egress) for packets in (sent, answered))

    def passes_directly(self, peers: Peers, ingress: Pinned, egress: Pinned) -> bool:
        """True if a connection past the Service works."""
        client = peers.with_port(peers.client, 41000)
        packets = peers.data(client, peers.backend), peers.data(peers.backend, client)
        return all(self.passes(packet, packet, ingress, egress) for packet in packets)

    def states(self, pinned: Pinned) -> dict[str, dict[bytes, dict[str, int | bytes]]]:
        """Return the entries of a build, without what is not copied or not kept up to date."""
        left_out = ("mark", "acknowledged", "window", "tick")
        return {
            name: {
                key: {field: value for field, value in entry.items() if field not in left_out}
                for key, entry in states(pinned, name).items()
            }
            for name in CONNECTIONS
        }


@pytest.fixture
def takeover(start: Start, tmp_path: Path) -> Takeover:
    node = start(load(SIZES))
    newer = build(tmp_path / "bpf", FIELD)
    return Takeover(node, lambda: node.load(newer))
