"""A TCP connection through a frontend, with the sequence numbers of both sides."""

from __future__ import annotations

from dataclasses import dataclass

from scapy.packet import Packet

from tests.packets.node import Node
from tests.packets.packet import tcp
from tests.packets.peers import Peers, address_of

CLOSED = 11
"""Seconds after which a closed connection is removed."""

WINDOW, SCALE = 501, 7


@dataclass
class Conversation:
    """An established connection through the frontend ``vip``, with its numbers."""

    node: Node
    peers: Peers
    masquerade: bool
    scale: int | None = SCALE
    sent: int = 0x70000001
    """The client's next sequence number."""
    received: int = 0xFFFFFF01
    """The backend's."""
    seen: str = ""

    @property
    def client(self) -> str:
        return self.peers.external

    def from_client(self, flags: str, size: int = 0, seq: int | None = None) -> Packet:
        """Make a packet of the client."""
        packet = tcp(self.client, self.peers.vip, flags, bytes(size))
        return self._numbered(packet, self.sent if seq is None else seq, self.received)

    def from_backend(self, flags: str, size: int = 0, seq: int | None = None) -> Packet:
        """Make a packet of the backend."""
        packet = tcp(self.peers.backend, self.seen, flags, bytes(size))
        return self._numbered(packet, self.received if seq is None else seq, self.sent)

    def _numbered(self, packet: Packet, seq: int, ack: int) -> Packet:
        packet.payload.seq = seq & 0xFFFFFFFF
        packet.payload.ack = ack & 0xFFFFFFFF if "A" in str(packet.payload.flags) else 0
        packet.payload.window = WINDOW
        if "S" in str(packet.payload.flags) and self.scale is not None:
            # As Linux writes them: an option of two bytes, and a filler, come before the scale.
            first = [("MSS", 1460), ("SAckOK", b""), ("Timestamp", (1, 0)), ("NOP", None)]
            packet.payload.options = [*first, ("WScale", self.scale)]
        return packet

    def syn(self) -> Packet:
        """Make the SYN before the client's first byte."""
        return self.from_client("S", seq=self.sent - 1)

    def start(self) -> Conversation:
        """Send the SYN to a Service of one backend."""
        self.peers.service(self.node, [self.peers.backend], masquerade=self.masquerade)
        out = self.node.forward(self.syn())
        self.seen = self.peers.with_port(out.src, out.payload.sport)
        return self

    def open(self, *between: Packet) -> Conversation:
        """Establish the connection; packets ``between`` come before the backend's answer."""
        self.start()
        for packet in between:
            self.node.forward(packet)
        self.node.forward(self.from_backend("SA", seq=self.received - 1))
        self.node.forward(self.from_client("A"))
        self.talk(100, 1000)
        return self

    def talk(self, question: int, answer: int) -> None:
        """Send data both ways, and acknowledge all."""
        self.node.forward(self.from_client("PA", question))
        self.sent += question
        self.node.forward(self.from_backend("PA", answer))
        self.received += answer
        self.node.forward(self.from_client("A"))

    def reset(self, sender: str, ahead: int) -> Packet:
        """Make a reset with a sequence number so much ahead of what its receiver expects."""
        if sender == "client":
            return self.from_client("R", seq=self.sent + ahead)
        return self.from_backend("R", seq=self.received + ahead)

    def answer_to_reset(self, sender: str) -> Packet:
        """Make the acknowledgement by which the receiver of a doubtful reset answers."""
        return self.from_backend("A") if sender == "client" else self.from_client("A")

    def is_kept(self) -> bool:
        """True if a SYN of the same port still goes to the backend that was chosen first."""
        self.peers.service(self.node, [self.peers.other_backend], masquerade=self.masquerade)
        return bool(self.node.forward(self.from_client("S")).dst == address_of(self.peers.backend))

    def removed(self) -> int:
        """Let so much time pass that a closed connection is removed; return how many were."""
        self.node.age(CLOSED)
        keys = [key for key, _ in self.node.pinned.map("connections").items()]
        return self.node.collect(*keys)
