"""What the model knows in a history: the world as it is now, its connections and direct flows."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from bpfsvc.base.address import pack
from tests.fuzz.connections import (
    SECOND,
    UDP_SECONDS,
    Connection,
    Peer,
)
from tests.fuzz.controlled_node import START_NS
from tests.fuzz.events import Foreign, IcmpError, Packet, Sequence
from tests.fuzz.frames import FIN, PROTOCOLS, RST, SYN, TCP, End, Segment, ends
from tests.fuzz.passages import Different, Passage
from tests.fuzz.world import CLIENTS, NODE_ADDRESS, SOURCE_PORTS, World
from tests.specification.verdicts import Verdict

NODE = {family: pack(address) for family, address in NODE_ADDRESS.items()}
MASQUERADE_PORTS = range(10000, 30000)
FEW_PORTS = range(12340, 12348)
"""Of some worlds, where ports are used again soon. Clients have one of them, too."""

Key = tuple[int, End, End]
"""Protocol, source and destination."""


class Sent(NamedTuple):
    """A packet of a client that has been sent, and what became of it (of its first fragment)."""

    key: Key
    event: Packet
    segment: Segment
    data: bytes
    passage: Passage

    @property
    def what(self) -> str:
        return self.passage.what

    @property
    def routed(self) -> bytes:
        """The frame between the hooks."""
        return self.passage.routed

    @property
    def left(self) -> bytes:
        """The frame as it leaves."""
        return self.passage.left


class Model:
    """The model of one history.

    * ``connections``: by the key of the client's packets. ``direct``: when flows past the Services
      began. ``seen``: how often what was seen.
    * ``of_netfilter``: 5-tuples that connections of netfilter have until they leave the node:
      protocol, the node's end and the backend. ``upgrading``: a build is being replaced.
    * ``used``: the ends that clients have had: protocol and end.
    """

    def __init__(self, seed: int, seen: Counter[str]) -> None:
        self.now = START_NS
        self.seen = seen
        self.world = World(seed)
        self.ports = FEW_PORTS if seed % 3 == 1 else MASQUERADE_PORTS
        self.connections: dict[Key, Connection] = {}
        self.direct: dict[Key | None, int] = {}
        self.of_netfilter: set[tuple[int, End, End]] = set()
        self.upgrading = False
        self.used: set[tuple[int, End]] = set()
        self._endpoints: dict[int, set[tuple[int, End]]] = {}
        self._forgotten = 0
        self._remembered: dict[tuple[bytes, tuple[object, ...]], tuple[str, int]] = {}

    def named(self, event: IcmpError | Foreign | Packet) -> Key:
        """Return the key of the connection that an event names."""
        protocol, target, _ = self.world.targets[event.family][event.target]
        client = pack(CLIENTS[event.family][event.client]), SOURCE_PORTS[event.port]
        return PROTOCOLS[protocol], client, target

    def verdict(self, event: Packet) -> Verdict:
        """Return what the specification says of a first packet, at this moment."""
        return self.world.verdict(event.target, event.client, event.family)

    def owner(self, data: bytes) -> Connection | None:
        """Return a connection that looks like the flow of a frame between the hooks."""
        flow = ends(data)
        for other in self.connections.values():
            if flow == (other.protocol, other.routed, other.backend):
                return other
        return None

    def take_from_closed(self, protocol: int, seen: End, backend: End) -> bool:
        """Have connections that may be over lose these ends on the wire; False if another has them.

        They are netfilter's now. Where ports are short, one that is not established may lose them,
        too.
        """
        have = [
            other
            for other in self.connections.values()
            if (other.protocol, other.seen, other.backend) == (protocol, seen, backend)
        ]
        if any(other.keeps_port(self.now) for other in have):
            return False
        for other in have:
            other.lose_port()
        return True

    # -- connections --

    def add(self, sent: Sent, routed: End, seen: End, backend: End, about: str) -> None:
        """Add a connection that its first packet has opened."""
        protocol, client, target = sent.key
        segment = sent.segment
        connection = Connection(
            *(protocol, client, target, backend),
            routed=routed,
            seen=seen,
            begun_ns=self.now,
            peers=(Peer(segment.sequence), Peer(sent.event.number * 7 & 0xFFFFFFFF)),
            port_lost=not seen[1],
        )
        self._is_no_direct_flow(connection, about)
        self.are_apart(connection, about)
        self.used.add((protocol, client))
        self.seen["connections opened"] += 1
        self.seen["connections by another port"] += routed[1] != client[1]
        self.connections[sent.key] = connection
        self.noted(connection, sent.event, segment)
        if protocol == TCP:
            next_byte = segment.sequence + 1 + len(segment.payload) + bool(segment.flags & FIN)
            connection.peers[0].next = next_byte & 0xFFFFFFFF

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is over."""
        del self.connections[connection.protocol, connection.client, connection.frontend]

    def noted(self, connection: Connection, event: Packet, segment: Segment) -> None:
        """Bring a connection forward by a packet that was translated."""
        if connection.protocol == TCP:
            me = connection.peers[event.sender]
            if segment.flags & SYN and not connection.established:
                me.shift = segment.options[7] if segment.options else 0
            if event.sequence == Sequence.NEXT and not segment.flags & RST:
                more = len(segment.payload) + bool(segment.flags & SYN) + bool(segment.flags & FIN)
                me.next = me.next + more & 0xFFFFFFFF
        was_reset = connection.reset
        connection.passed(event.sender, segment, self.now)
        if self.upgrading:
            connection.copied()
            # One of both builds may have the reset, and the other one what shows it to be forged.
            connection.unsure_state |= was_reset and not connection.reset

    def are_apart(self, new: Connection, about: str) -> None:
        """Assert that no two connections share a 5-tuple, between the hooks or on the wire.

        A connection that is over makes room. If only its port on the wire was taken, its client
        may still send: that gets another port.
        """
        for other in list(self.connections.values()):
            if other is new or (other.protocol, other.backend) != (new.protocol, new.backend):
                continue
            if other.routed != new.routed and (other.seen != new.seen or not new.seen[1]):
                continue
            self.seen["5-tuples taken over"] += 1
            # Where ports are short, one that is not established may lose its own.
            if other.keeps_port(self.now):
                raise Different(f"{about}: {new} has a 5-tuple of {other}")
            if other.routed == new.routed:
                self.remove(other)
            else:
                other.lose_port()

    def _is_no_direct_flow(self, new: Connection, about: str) -> None:
        """Assert that a connection has no 5-tuple of a direct flow.

        Direct flows are remembered by fingerprints. A newer flow may overwrite that of an older
        one, so a history may have one of these.
        """
        direct = new.protocol, new.routed, new.backend
        if direct not in self.direct or new.frontend == new.backend:
            return
        is_recent = self.now - self.direct[direct] < (UDP_SECONDS - 5) * SECOND
        del self.direct[direct]
        if new.protocol == TCP or is_recent:
            self._forgotten += 1
            self.seen["direct flows forgotten"] += 1
        if self._forgotten > 1:
            raise Different(f"{about}: {new} has the 5-tuple of a direct flow")

    def direct_begins(self, key: Key) -> None:
        """Remember a flow past the Services, if it goes to an endpoint."""
        if any((key[0], key[2]) in known for known in self._endpoints.values()):
            self.direct[key] = self.now
            self.used.add(key[:2])

    # -- the control plane --

    def has_endpoints(self, number: int, endpoints: set[tuple[int, End]]) -> None:
        """Take note of the endpoints that a Service has now, by their protocols."""
        self._endpoints[number] = endpoints

    def forget_clients(self) -> None:
        """Affinity ends when an endpoint leaves, even if it comes back."""
        for key, (backend, _) in list(self._remembered.items()):
            if backend not in self.world.endpoints(key[1]):
                del self._remembered[key]

    def forget_client(self, event: Packet) -> None:
        """Forget with which backend a client has been: that is not known any more."""
        self._remembered.pop(self._client(event), None)

    def _client(self, event: Packet) -> tuple[bytes, tuple[object, ...]]:
        service_port = self.world.targets[event.family][event.target].service_port
        return pack(CLIENTS[event.family][event.client]), service_port

    def keep_affinity(self, verdict: Verdict, event: Packet, backend: str, about: str) -> None:
        """Hold the choice against what the service port has to remember of the client."""
        if not verdict.affinity_seconds:
            return
        key = self._client(event)
        last, when = self._remembered.get(key, ("", 0))
        recent = self.now - when < verdict.affinity_seconds * SECOND
        if recent and last in verdict.endpoints and backend != last:
            raise Different(f"{about}: went to {backend}, and the client has been with {last}")
        self._remembered[key] = backend, self.now
