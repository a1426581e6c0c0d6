"""Plays a history on the real programs, and holds each step against the model."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable

from bpfsvc.base.address import family as family_of
from bpfsvc.base.address import pack
from bpfsvc.datapath import syscall
from tests.fuzz.connections import (
    INEXACT,
    SECOND,
    SERVER,
    Connection,
    Peer,
    is_opening,
)
from tests.fuzz.controlled_node import START_NS, ControlledNode, Runner
from tests.fuzz.events import Collect, Event, Packet, Pause, Sequence
from tests.fuzz.frames import (
    ACK,
    FIN,
    PROTOCOLS,
    RST,
    SYN,
    TCP,
    End,
    Segment,
    difference,
    ends,
    frame,
    refusal_difference,
)
from tests.fuzz.world import (
    CLIENTS,
    NODE_ADDRESS,
    SERVICES,
    SOURCE_PORTS,
    World,
    endpoint_of,
)
from tests.packets.node import REDIRECT, SHOT, UNSPEC
from tests.specification.verdicts import Verdict

MASQUERADE_PORTS = range(10000, 30000)
_NODE = {family: pack(address) for family, address in NODE_ADDRESS.items()}
_INGRESS = 1
_GC_RUN = struct.Struct("=14xBBBBBB4x")
_GC_BATCH = 8
_KEY = struct.Struct(">16s16sHHBBH")
_VERDICTS = {UNSPEC: "passes", SHOT: "is dropped", REDIRECT: "is sent back"}


class Different(AssertionError):
    """The programs have done what the model does not allow."""


class Player:
    """One node and one world, and the connections that the model has of it."""

    def __init__(self, node: ControlledNode) -> None:
        self.node = node
        interface = node.interface
        self._ingress = Runner(node.pinned.program("ingress"), interface)
        self._egress = Runner(node.pinned.program("egress"), interface)
        self._interface = interface
        self.runs = 0
        self.seen: Counter[str] = Counter()
        """How often what was seen, for the figures of a run."""
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Forget everything, and make the world of a seed."""
        node = self.node
        self.now = START_NS
        node.controls.set_time(self.now)
        node.controls.set_seed(seed)
        node.reset()
        node.pinned.map("masquerade_turns").update(bytes(4), bytes(8))
        node.service_networks("10.96.0.0/16", "fd96::/112")
        self.world = World(seed)
        self.connections: dict[tuple[int, End, End], Connection] = {}
        self._remembered: dict[tuple[bytes, tuple[object, ...]], tuple[str, int]] = {}
        for number in range(SERVICES):
            self._program(number)

    def play(self, events: Iterable[Event]) -> None:
        """Play events; raise :class:`Different`."""
        for event in events:
            self.step(event)

    def step(self, event: Event) -> None:
        """Play one event."""
        if isinstance(event, Packet):
            self._packet(event)
        elif isinstance(event, Pause):
            self.now += event.ns
            self.node.controls.set_time(self.now)
        elif isinstance(event, Collect):
            self._collect()
        else:
            self.world.rewrite(event.service, event.number)
            self._program(event.service)
            self._forget_clients()

    def end(self) -> None:
        """Let so much time pass that nothing may be left, and hold the tables against that."""
        for _ in range(3):
            self.step(Pause(172_800_000_000_000))
            self.step(Collect())
        left = self.node.count("connections"), self.node.count("new_connections"), self.node.held()
        if any(left):
            raise Different(f"after days of silence there are entries: {left}")

    # -- the control plane --

    def _program(self, number: int) -> None:
        self.seen["writes of the control plane"] += 1
        key, entries = self.world.entries(number)
        self.node._execute(key, entries)

    def _forget_clients(self) -> None:
        """Affinity ends when an endpoint leaves, even if it comes back."""
        for key, (backend, _) in list(self._remembered.items()):
            if backend not in self.world.endpoints(key[1]):
                del self._remembered[key]

    # -- time --

    def _collect(self) -> None:
        gc = self.node.pinned.program("gc")
        for source in (1, 2):
            while True:
                request = bytearray(_GC_RUN.pack(0, 0, 0, 0, 0, source))
                _, after = syscall.program_test_run(gc, bytes(request))
                self.runs += 1
                if not after[21]:
                    break
        for name in ("connections", "new_connections"):
            keys = [key for key, _ in self.node.pinned.map(name).items()]
            for at in range(0, len(keys), _GC_BATCH):
                self.node.collect(*keys[at : at + _GC_BATCH])
                self.runs += 1
        left = {key for key, _ in self.node.pinned.map("connections").items()}
        left |= {key for key, _ in self.node.pinned.map("new_connections").items()}
        for key, connection in list(self.connections.items()):
            self._judge_collected(key, connection, left)

    def _judge_collected(
        self, key: tuple[int, End, End], connection: Connection, left: set[bytes]
    ) -> None:
        silent, lifetime = self.now - connection.last_ns(), connection.lifetime()
        is_there = _entry_key(connection) in left
        if not (connection.unsure or connection.unsure_state):
            if silent >= lifetime and is_there:
                raise Different(
                    f"is over for {silent / 1e9:.1f} s and was not removed: {connection}"
                )
            if silent + INEXACT < lifetime and not is_there:
                raise Different(f"was removed, silent for {silent / 1e9:.1f} s: {connection}")
        if is_there:
            connection.unsure = False
        else:
            del self.connections[key]
            self.seen["connections collected"] += 1

    # -- packets --

    def _packet(self, event: Packet) -> None:
        protocol_name, target, _ = self.world.targets[event.family][event.target]
        protocol = PROTOCOLS[protocol_name]
        client = pack(CLIENTS[event.family][event.client]), SOURCE_PORTS[event.port]
        key = protocol, client, target
        connection = self.connections.get(key)
        self.node.controls.set_seed(event.number)
        if event.sender == SERVER:
            if connection is not None:
                self._from_server(key, connection, event)
        else:
            self._from_client(key, connection, event)

    def _segment(self, protocol: int, connection: Connection | None, event: Packet) -> Segment:
        payload = bytes(event.length)
        if protocol != TCP:
            return Segment(payload=payload, damage=event.damage, unsummed=event.unsummed)
        if connection is None:
            me, other = Peer(event.number), Peer(0)
        else:
            me = connection.peers[event.sender]
            other = connection.peers[1 - event.sender]
        expected = me.next if other.acknowledged is None else other.acknowledged
        sequence = {
            Sequence.NEXT: me.next,
            Sequence.EXPECTED: expected,
            Sequence.IN_WINDOW: expected + 1 + event.number % max(1, other.window),
            Sequence.FAR: expected + (1 << 30),
            Sequence.OLD: expected - 1000,
        }[Sequence(event.sequence)]
        acknowledged = other.next if event.flags & ACK else 0
        if event.forged:
            acknowledged += 1 << 30
        options = b""
        if event.flags & SYN and event.number & 3:
            # A maximal segment, nothing, and the shift of the window.
            options = b"\x02\x04\x05\xb4\x01\x03\x03" + bytes([event.number >> 8 & 7])
        return Segment(
            event.flags,
            sequence & 0xFFFFFFFF,
            acknowledged & 0xFFFFFFFF,
            1000 + (event.number >> 16 & 0x7FFF),
            options,
            payload,
            event.damage,
        )

    def _noted(self, connection: Connection, event: Packet, segment: Segment) -> None:
        """Bring the model of a connection forward."""
        if connection.protocol == TCP:
            me = connection.peers[event.sender]
            if segment.flags & SYN and not connection.established:
                me.shift = segment.options[7] if segment.options else 0
            if event.sequence == Sequence.NEXT and not segment.flags & RST:
                more = len(segment.payload) + bool(segment.flags & SYN) + bool(segment.flags & FIN)
                me.next = me.next + more & 0xFFFFFFFF
        connection.passed(event.sender, segment, self.now)

    def _through(self, data: bytes) -> tuple[str, bytes, bytes]:
        """Send a frame through both hooks.

        Return what becomes of it, the frame between the hooks, and as it leaves.
        """
        verdict, routed, mark = self._ingress.run(data, self._interface)
        self.runs += 1
        if verdict != UNSPEC:
            return f"{_VERDICTS.get(verdict, verdict)} at ingress", routed, routed
        known = ends(routed)
        if known and known[2][0] == _NODE[family_of(known[2][0])]:
            # The node's own stack receives it.
            return "is delivered", routed, routed
        verdict, left, _ = self._egress.run(routed, self._interface, mark)
        self.runs += 1
        if verdict != UNSPEC:
            return f"{_VERDICTS.get(verdict, verdict)} at egress", routed, left
        return "leaves", routed, left

    def _from_client(
        self, key: tuple[int, End, End], connection: Connection | None, event: Packet
    ) -> None:
        protocol, client, target = key
        segment = self._segment(protocol, connection, event)
        data = frame(protocol, client, target, segment)
        what, routed, left = self._through(data)
        is_first = protocol != TCP or is_opening(segment.flags)
        if connection is not None:
            is_certain = not (connection.unsure or connection.unsure_state)
            reopens = protocol == TCP and is_first and connection.closed
            if not reopens or not is_certain:
                problem = self._goes_on(connection, data, what, routed, left)
                if not problem:
                    self._noted(connection, event, segment)
                    self.seen["packets of clients"] += 1
                    return
                if is_certain:
                    raise Different(f"client's packet of {connection}: {problem}")
            # The connection is over.
            del self.connections[key]
            connection = None
        if is_first:
            self._opens(key, event, segment, data, what, routed, left)
        else:
            self._is_unknown(event, segment, data, what, left)

    def _goes_on(
        self, connection: Connection, data: bytes, what: str, routed: bytes, left: bytes
    ) -> str:
        """Return what is wrong with a packet of the client of a connection."""
        if what != "leaves":
            return what
        problem = difference(data, routed, connection.routed, connection.backend)
        if problem:
            return f"after ingress: {problem}"
        problem = difference(data, left, connection.seen, connection.backend)
        return f"as it leaves: {problem}" if problem else ""

    def _is_unknown(
        self, event: Packet, segment: Segment, data: bytes, what: str, left: bytes
    ) -> None:
        verdict = self.world.verdict(event.target, event.client, event.family)
        if verdict.verdict == "none":
            if what not in ("leaves", "is delivered") or left != data:
                raise Different(f"a packet for no Service {what}")
            return
        # A port without a frontend: the middle of a connection passes there, as in iptables mode.
        if what == "leaves" and verdict.frontend:
            raise Different(f"of no connection, for {verdict.rule}, leaves for the frontend")
        if what == "is sent back at egress":
            problem = refusal_difference(data, left)
            if problem or segment.flags & RST:
                raise Different(problem or "a reset is answered")
            self.seen["packets of no connection reset"] += 1
        elif what == "is delivered" and left != data:
            raise Different("a packet of no connection is changed")

    def _opens(
        self,
        key: tuple[int, End, End],
        event: Packet,
        segment: Segment,
        data: bytes,
        what: str,
        routed: bytes,
        left: bytes,
    ) -> None:
        verdict = self.world.verdict(event.target, event.client, event.family)
        about = f"first packet, {verdict.rule}"
        if verdict.verdict == "none":
            if what not in ("leaves", "is delivered") or left != data:
                raise Different(f"{about}: {what}, or is changed")
            self.seen["packets for no Service"] += 1
        elif verdict.verdict == "drop":
            if what != "is dropped at ingress":
                raise Different(f"{about}: {what}")
            self.seen["first packets dropped"] += 1
        elif verdict.verdict == "reject":
            if what == "is dropped at ingress" and segment.flags & RST:
                return
            if what != "is sent back at ingress":
                raise Different(f"{about}: {what}")
            problem = refusal_difference(data, left)
            if problem:
                raise Different(f"{about}: {problem}")
            self.seen["first packets refused"] += 1
        else:
            if what != "leaves":
                raise Different(f"{about}: {what}")
            self._opened(key, event, segment, data, routed, left, about)

    def _opened(
        self,
        key: tuple[int, End, End],
        event: Packet,
        segment: Segment,
        data: bytes,
        routed: bytes,
        left: bytes,
        about: str,
    ) -> None:
        protocol, client, target = key
        verdict = self.world.verdict(event.target, event.client, event.family)
        known = ends(left)
        if known is None:
            raise Different(f"{about}: leaves as something else")
        _, seen, backend = known
        text = endpoint_of(backend)
        if text not in verdict.endpoints:
            raise Different(f"{about}: went to {text}, not one of {verdict.endpoints}")
        masqueraded = verdict.masquerade or text in verdict.masquerade_endpoints
        if masqueraded:
            if seen[0] != _NODE[event.family] or seen[1] not in MASQUERADE_PORTS:
                raise Different(f"{about}: masqueraded to {endpoint_of(seen)}")
        elif seen[0] != client[0]:
            raise Different(f"{about}: source became {endpoint_of(seen)}")
        problem = difference(data, left, seen, backend)
        if problem:
            raise Different(f"{about}: {problem}")
        self._keep_affinity(verdict, client[0], event, text, about)
        between = ends(routed)
        if between is None or between[2] != backend or between[1][0] != client[0]:
            raise Different(f"{about}: is routed as {between}")
        connection = Connection(
            *(protocol, client, target, backend),
            routed=between[1],
            seen=seen,
            masqueraded=masqueraded,
            begun_ns=self.now,
            peers=(Peer(segment.sequence), Peer(event.number * 7 & 0xFFFFFFFF)),
        )
        self._are_apart(connection, about)
        self.seen["connections opened"] += 1
        self.seen["connections masqueraded"] += masqueraded
        self.seen["connections by another port"] += connection.routed[1] != client[1]
        self.connections[key] = connection
        self._noted(connection, event, segment)
        if protocol == TCP:
            next_byte = segment.sequence + 1 + len(segment.payload) + bool(segment.flags & FIN)
            connection.peers[0].next = next_byte & 0xFFFFFFFF

    def _keep_affinity(
        self, verdict: Verdict, client: bytes, event: Packet, backend: str, about: str
    ) -> None:
        """Hold the choice against what the service port has to remember of the client."""
        if not verdict.affinity_seconds:
            return
        key = client, self.world.targets[event.family][event.target].service_port
        last, when = self._remembered.get(key, ("", 0))
        recent = self.now - when < verdict.affinity_seconds * SECOND
        if recent and last in verdict.endpoints and backend != last:
            raise Different(f"{about}: went to {backend}, and the client has been with {last}")
        self._remembered[key] = backend, self.now

    def _are_apart(self, new: Connection, about: str) -> None:
        """Assert that no two connections share a 5-tuple, between the hooks or on the wire."""
        for key, other in list(self.connections.items()):
            if other.protocol != new.protocol or other.backend != new.backend:
                continue
            if other.routed != new.routed and other.seen != new.seen:
                continue
            self.seen["5-tuples taken over"] += 1
            if not (other.closed or other.unsure or other.unsure_state):
                raise Different(f"{about}: {new} has a 5-tuple of {other}")
            del self.connections[key]

    def _from_server(
        self, key: tuple[int, End, End], connection: Connection, event: Packet
    ) -> None:
        segment = self._segment(connection.protocol, connection, event)
        data = frame(connection.protocol, connection.backend, connection.seen, segment)
        what, routed, left = self._through(data)
        problem = ""
        opens = connection.protocol == TCP and is_opening(segment.flags)
        if opens and (connection.closed or connection.unsure_state) and left == data:
            # The backend opens a connection of its own, from the port of the closed one.
            del self.connections[key]
            return
        if what != "leaves":
            problem = what
        else:
            problem = difference(data, routed, connection.backend, connection.routed)
            problem = problem or difference(data, left, connection.frontend, connection.client)
        if not problem:
            self._noted(connection, event, segment)
            self.seen["packets of servers"] += 1
            return
        if not (connection.unsure or connection.unsure_state):
            raise Different(f"server's packet of {connection}: {problem}")


def _entry_key(connection: Connection) -> bytes:
    """Return the key of the entry of the client's packets."""
    return _KEY.pack(
        connection.client[0],
        connection.frontend[0],
        connection.client[1],
        connection.frontend[1],
        connection.protocol,
        _INGRESS,
        0,
    )
