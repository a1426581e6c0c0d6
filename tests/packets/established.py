"""Connections with a fast middle only, and the packets that netfilter must have let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scapy.packet import Packet

from bpfsvc.agent.flows.established_flows import ListedPorts
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from tests.packets.fast_path import FastPathTestbed, forwarded, hop, limit
from tests.packets.node import REDIRECT, UNSPEC
from tests.packets.packet import same, tcp
from tests.packets.peers import Peers

_TRIES = 8
"""A turn ends after a quarter of a second or more; what runs into its end is repeated."""


class Connection(NamedTuple):
    """A connection between pods, on the testbed of the fast path.

    * ``to``: whom the client asks. ``server``: the pod that answers.
    * ``by``: the interface towards the server.
    """

    testbed: FastPathTestbed
    peers: Peers
    to: str
    server: str
    by: str

    def packets(self, sent: bool, flags: str = "") -> tuple[Packet, Packet, Packet]:
        """Return a packet as it comes, as it is routed, and as it leaves, without its hop."""
        client = self.peers.client
        if sent:
            ends = (client, self.to), (client, self.server), (client, self.server)
        else:
            ends = (self.server, client), (self.server, client), (self.to, client)
        if flags:
            return tuple(tcp(*each, flags) for each in ends)  # type: ignore[return-value]
        return tuple(self.peers.data(*end) for end in ends)  # type: ignore[return-value]

    def _interfaces(self, sent: bool) -> tuple[str, str]:
        return ("pod0", self.by) if sent else (self.by, "pod0")

    def comes(self, sent: bool, flags: str = "") -> tuple[int, Packet]:
        """Run ingress on a packet of the client (``sent``), or of the server."""
        verdict, frame = self.testbed.run(
            "ingress", self._interfaces(sent)[0], self.packets(sent, flags)[0]
        )
        return verdict, frame.payload

    def left_to_netfilter(self, sent: bool, flags: str = "") -> None:
        """Assert that ingress leaves a packet to the stack, which then loses it."""
        verdict, packet = self.comes(sent, flags)
        _, routed, _ = self.packets(sent, flags)
        assert verdict == UNSPEC
        assert same(packet, routed)
        assert limit(packet) == limit(routed)

    def passes_netfilter(self, sent: bool, flags: str = "") -> None:
        """Have the stack let a packet pass, which then leaves."""
        came_by, leaves_by = self._interfaces(sent)
        _, routed, leaves = self.packets(sent, flags)
        got = self.testbed.egress(leaves_by, hop(routed), came_by=came_by)
        assert forwarded(got, leaves)

    def by_the_stack(self, sent: bool, flags: str = "") -> None:
        """Assert that a packet takes the stack, which lets it pass."""
        self.left_to_netfilter(sent, flags)
        self.passes_netfilter(sent, flags)

    def fast(self, sent: bool) -> None:
        """Assert that a packet is fast, once netfilter has let another one of the turn pass."""
        for _ in range(_TRIES):
            verdict, packet = self.comes(sent)
            if verdict == REDIRECT:
                _, routed, leaves = self.packets(sent)
                # (To a neighbour it goes before egress, into a pod past that.)
                assert forwarded(packet, leaves) or forwarded(packet, routed)
                return
            self.passes_netfilter(sent)
        raise AssertionError("no packet was fast")

    # -- what the agent writes --

    def keys(self) -> list[bytes]:
        """Return the keys of both directions, as netfilter sees them."""
        protocol = self.peers.protocol
        node = self.testbed.node
        return [
            node.established_flow(self.peers.client, self.server, protocol),
            node.established_flow(self.server, self.peers.client, protocol),
        ]

    def write(self, state: str, *, listed: bool = True) -> None:
        """Give both directions a state of ``enum established_state``, as the agent does.

        ``listed``: list their ports first.
        """
        pinned = self.testbed.node.pinned
        value = pinned.layout.maps["established_flows"].value.pack(
            {"state": pinned.layout.constant(f"ESTABLISHED_{state}")}
        )
        if listed:
            self.list_ports()
        for key in self.keys():
            pinned.map("established_flows").update(key, value)

    def list_ports(self) -> None:
        """List the ports of one direction, and no others, as the agent does."""
        pinned = self.testbed.node.pinned
        key = pinned.layout.maps["established_flows"].key.pick(*TranslatedFlow._fields)
        ListedPorts(pinned).write([TranslatedFlow(*key.unpack(self.keys()[0]))])

    def states(self) -> list[str]:
        """Return the states of the entries that there are, of all connections."""
        pinned = self.testbed.node.pinned
        record = pinned.layout.maps["established_flows"].value
        names = {
            pinned.layout.constant(f"ESTABLISHED_{name}"): name
            for name in ("CANDIDATE", "REFUSED", "FAST")
        }
        entries = pinned.map("established_flows").items()
        return [names[int(record.unpack(raw)["state"])] for _, raw in entries]


def directly(testbed: FastPathTestbed, peers: Peers) -> Connection:
    """Return a connection to a pod of another node."""
    return Connection(testbed, peers, peers.backend, peers.backend, "eth0")


def directly_near(testbed: FastPathTestbed, peers: Peers) -> Connection:
    """Return a connection to a pod of this node."""
    near = peers.other_backend
    return Connection(testbed, peers, near, near, "pod1")


def through_service(testbed: FastPathTestbed, peers: Peers) -> Connection:
    """Return a connection to a Service with a backend on another node."""
    peers.service(testbed.node, [peers.backend])
    return Connection(testbed, peers, peers.vip, peers.backend, "eth0")


def through_service_near(testbed: FastPathTestbed, peers: Peers) -> Connection:
    """Return a connection to a Service with a backend on this node."""
    near = peers.other_backend
    peers.service(testbed.node, [near])
    return Connection(testbed, peers, peers.vip, near, "pod1")


KINDS: dict[str, Callable[[FastPathTestbed, Peers], Connection]] = {
    "to a pod": directly,
    "to a pod of this node": directly_near,
    "to a Service": through_service,
    "to a Service, pod of this node": through_service_near,
}


def open_by_the_stack(made: Connection) -> None:
    """Open a connection, all of it by the stack."""
    if made.peers.protocol == "TCP":
        made.by_the_stack(True, "S")
        made.by_the_stack(False, "SA")
        made.by_the_stack(True, "A")
    else:
        made.by_the_stack(True)
        made.by_the_stack(False)
