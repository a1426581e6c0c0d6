"""Who talks to whom in a packet test, once per family and protocol.

A test written against a scene says what happens to a connection and holds for TCP, UDP and SCTP,
IPv4 and IPv6 alike; what only one of them has is tested with that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scapy.packet import Packet

from tests.packets.node import Node, sctp, sctp_init, sctp_init_ack, tcp, udp


@dataclass(frozen=True, slots=True)
class Scene:
    """Places are ``address:port`` texts; ``us`` (the node) and ``router`` are bare addresses."""

    family: int
    protocol: str
    client: str
    stranger: str
    vip: str
    other_vip: str
    backend: str
    other_backend: str
    us: str
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
        """Make the packet that establishes a connection, as it comes and as it must go on.

        Of TCP that is the client's acknowledgement, of the others the first reply. ``seen`` is the
        client as the backend sees it.
        """
        if self.protocol == "TCP":
            return tcp(client, frontend, "A"), tcp(seen, backend, "A")
        return self.answer(backend, seen), self.answer(frontend, client)

    def _packet(self, source: str, destination: str, flags: str, payload: bytes = b"") -> Packet:
        if self.protocol == "TCP":
            return tcp(source, destination, flags, payload)
        if self.protocol == "SCTP":
            if flags != "PA":
                return (sctp_init if flags == "S" else sctp_init_ack)(source, destination)
            return sctp(source, destination, payload=payload)
        return udp(source, destination, payload or b"x")

    def service(self, node: Node, backends: Sequence[str], name: str = "web", **how: Any) -> None:
        """Program a Service of this protocol and family; by default at ``vip``."""
        if "frontends" not in how and "node_port" not in how:
            how["frontends"] = [self.vip]
        node.service(name, backends, protocol=self.protocol, family=self.family, **how)

    def node_place(self, port: int) -> str:
        """Give a port of the node's address."""
        return self.at(self.us, port)

    def at(self, address: str, port: int) -> str:
        """Give a place from a bare address, or another port of a place."""
        address = bare(address)
        return f"[{address}]:{port}" if self.family == 6 else f"{address}:{port}"

    def begin(self, node: Node, source: str, frontend: str, backend: str) -> str:
        """Begin a connection: all that goes before the packet that establishes it.

        Gives the client as the backend sees it.
        """
        out = node.forward(self.opening(source, frontend))
        seen = self.at(out.src, out.payload.sport)
        if self.protocol == "TCP":
            back = node.forward(self.answer(backend, seen))
            assert bytes(back) == bytes(self.answer(frontend, source))
        return seen

    def connect(self, node: Node, source: str, frontend: str, backend: str) -> str:
        """Establish a connection through ``frontend``; give the client as the backend sees it."""
        seen = self.begin(node, source, frontend, backend)
        comes, goes = self.proof(source, frontend, backend, seen)
        assert bytes(node.forward(comes)) == bytes(goes)
        node.forward(self.data(source, frontend))
        return seen

    def close(self, node: Node, source: str, frontend: str, backend: str, seen: str) -> None:
        """End an established TCP connection, by FIN both ways."""
        node.forward(tcp(source, frontend, "FA"))
        node.forward(tcp(backend, seen, "FA"))
        node.forward(tcp(source, frontend, "A"))


def bare(place: str) -> str:
    """Give the address of a place."""
    if place.count(":") > 1 and not place.startswith("["):
        return place
    return place.rpartition(":")[0].strip("[]") if ":" in place else place


def scene(protocol: str, family: int) -> Scene:
    """Set up one of the six scenes."""
    if family == 4:
        return Scene(
            family=4,
            protocol=protocol,
            client="10.244.1.5:40000",
            stranger="192.168.50.9:40000",
            vip="10.96.0.10:80",
            other_vip="10.96.0.20:80",
            backend="10.244.2.7:8080",
            other_backend="10.244.3.8:8080",
            us="192.168.50.11",
            router="172.16.0.1",
        )
    return Scene(
        family=6,
        protocol=protocol,
        client="[fd44:0:0:1::5]:40000",
        stranger="[fd50::9]:40000",
        vip="[fd96::10]:80",
        other_vip="[fd96::20]:80",
        backend="[fd44:0:0:2::7]:8080",
        other_backend="[fd44:0:0:3::8]:8080",
        us="fd50::11",
        router="fd70::1",
    )


TCP_SCENES = [scene("TCP", 4), scene("TCP", 6)]
UDP_SCENES = [scene("UDP", 4), scene("UDP", 6)]
SCTP_SCENES = [scene("SCTP", 4), scene("SCTP", 6)]
SCENES = TCP_SCENES + UDP_SCENES + SCTP_SCENES
