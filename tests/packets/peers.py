"""The clients, frontends and backends of packet tests, once per family and protocol.

A test with peers runs for TCP, UDP and SCTP, and for IPv4 and IPv6. What only one of them has is
tested with that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scapy.packet import Packet

from tests.packets.node import Node
from tests.packets.packet import sctp, sctp_init, sctp_init_ack, tcp, udp


@dataclass(frozen=True, slots=True)
class Peers:
    """All are ``address:port`` texts, but ``node_address`` and ``router`` are addresses."""

    family: int
    protocol: str
    client: str
    external: str
    vip: str
    other_vip: str
    backend: str
    other_backend: str
    node_address: str
    router: str

    def __str__(self) -> str:
        return f"{self.protocol}/IPv{self.family}"

    def opening(self, source: str, destination: str) -> Packet:
        """Make the first packet of a connection."""
        return self._packet(source, destination, "S")

    def answer(self, source: str, destination: str) -> Packet:
        """Make the first reply."""
        return self._packet(source, destination, "SA")

    def data(self, source: str, destination: str, payload: bytes = b"hello") -> Packet:
        """Make a packet from the middle of a connection, of either direction."""
        return self._packet(source, destination, "PA", payload)

    def proof(self, client: str, frontend: str, backend: str, seen: str) -> tuple[Packet, Packet]:
        """Return the packet that establishes a connection, as it arrives and as it must leave.

        That is what the client sends after the first answer. ``seen`` is the client as the backend
        sees it.
        """
        if self.protocol == "TCP":
            return tcp(client, frontend, "A"), tcp(seen, backend, "A")
        return self.data(client, frontend), self.data(seen, backend)

    def _packet(
        self, source: str, destination: str, flags: str, payload: bytes | None = None
    ) -> Packet:
        if self.protocol == "TCP":
            return tcp(source, destination, flags, payload or b"")
        if self.protocol == "SCTP":
            if flags != "PA":
                return (sctp_init if flags == "S" else sctp_init_ack)(source, destination)
            return sctp(source, destination, payload=payload or b"")
        return udp(source, destination, b"x" if payload is None else payload)

    def service(self, node: Node, backends: Sequence[str], name: str = "web", **how: Any) -> None:
        """Program a Service of this protocol and family; by default at ``vip``."""
        if "frontends" not in how and "node_port" not in how:
            how["frontends"] = [self.vip]
        node.service(name, backends, protocol=self.protocol, family=self.family, **how)

    def served(self, node: Node, *, outside: bool = False, **how: Any) -> tuple[str, str, str]:
        """Program a Service of one backend; return a client, the frontend and the backend."""
        self.service(node, [self.backend], **how)
        return self.external if outside else self.client, self.vip, self.backend

    def connected(
        self, node: Node, *, outside: bool = False, **how: Any
    ) -> tuple[str, str, str, str]:
        """Do the same and connect; the last is the client as the backend sees it."""
        client, vip, backend = self.served(node, outside=outside, **how)
        return client, vip, backend, self.connect(node, client, vip, backend)

    def on_node(self, port: int) -> str:
        """Return the ``address:port`` text of a port of the node's own address."""
        return self.with_port(self.node_address, port)

    def with_port(self, address: str, port: int) -> str:
        """Return the ``address:port`` text of an address, or of the address of such a text."""
        address = address_of(address)
        return f"[{address}]:{port}" if self.family == 6 else f"{address}:{port}"

    def begin(self, node: Node, source: str, frontend: str, backend: str) -> str:
        """Send all packets before the one that establishes a connection.

        Return the client as the backend sees it.
        """
        out = node.forward(self.opening(source, frontend))
        seen = self.with_port(out.src, out.payload.sport)
        back = node.forward(self.answer(backend, seen))
        assert bytes(back) == bytes(self.answer(frontend, source))
        return seen

    def connect(self, node: Node, source: str, frontend: str, backend: str) -> str:
        """Establish a connection through ``frontend``; return the client as the backend sees it."""
        seen = self.begin(node, source, frontend, backend)
        arrives, leaves = self.proof(source, frontend, backend, seen)
        assert bytes(node.forward(arrives)) == bytes(leaves)
        node.forward(self.data(source, frontend))
        return seen

    def close(
        self,
        node: Node,
        source: str,
        frontend: str,
        backend: str,
        seen: str,
        *,
        backend_first: bool = False,
    ) -> None:
        """End an established TCP connection, by FIN both ways."""
        if backend_first:
            node.forward(tcp(backend, seen, "FA"))
            node.forward(tcp(source, frontend, "FA"))
            node.forward(tcp(backend, seen, "A"))
            return
        node.forward(tcp(source, frontend, "FA"))
        node.forward(tcp(backend, seen, "FA"))
        node.forward(tcp(source, frontend, "A"))


def address_of(text: str) -> str:
    """Return the address of an ``address:port`` text; an address stays as it is."""
    if text.count(":") > 1 and not text.startswith("["):
        return text
    return text.rpartition(":")[0].strip("[]") if ":" in text else text


def peers(protocol: str, family: int) -> Peers:
    """Return the peers of one protocol and family."""
    if family == 4:
        return Peers(
            family=4,
            protocol=protocol,
            client="10.244.1.5:40000",
            external="192.168.50.9:40000",
            vip="10.96.0.10:80",
            other_vip="10.96.0.20:80",
            backend="10.244.2.7:8080",
            other_backend="10.244.3.8:8080",
            node_address="192.168.50.11",
            router="172.16.0.1",
        )
    return Peers(
        family=6,
        protocol=protocol,
        client="[fd44::1:a:b:c:5]:40000",
        external="[fd50::9]:40000",
        vip="[fd96::10]:80",
        other_vip="[fd96::20]:80",
        backend="[fd44::2:d:e:f:7]:8080",
        other_backend="[fd44::3:9:7:5:8]:8080",
        node_address="fd50::11",
        router="fd70::1",
    )


TCP_PEERS = [peers("TCP", 4), peers("TCP", 6)]
UDP_PEERS = [peers("UDP", 4), peers("UDP", 6)]
SCTP_PEERS = [peers("SCTP", 4), peers("SCTP", 6)]
ALL_PEERS = TCP_PEERS + UDP_PEERS + SCTP_PEERS
