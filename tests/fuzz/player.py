"""Plays a history on the real programs, and holds each step against the model."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from bpfsvc.base.address import pack
from bpfsvc.datapath.maps.gc_program import GcProgram
from tests.fuzz.connections import (
    CROWDED_HALF_OPEN,
    INEXACT,
    SECOND,
    SERVER,
    UDP_SECONDS,
    Connection,
    Peer,
    is_opening,
)
from tests.fuzz.controlled_node import START_NS, ControlledNode
from tests.fuzz.events import (
    Collect,
    Event,
    Foreign,
    IcmpError,
    Packet,
    Pause,
    Sequence,
    Unrelated,
)
from tests.fuzz.frames import (
    ACK,
    FIN,
    PROTOCOLS,
    RST,
    SCTP_INIT,
    SCTP_INIT_ACK,
    SYN,
    TCP,
    End,
    Segment,
    difference,
    ends,
    frame,
    icmp_error,
    other_bytes,
    refusal_difference,
    transport_of,
)
from tests.fuzz.passages import Different, Passage, Passages
from tests.fuzz.segments import is_first, segment_of
from tests.fuzz.unrelated import unrelated_frame
from tests.fuzz.world import (
    CLIENTS,
    NODE_ADDRESS,
    SERVICES,
    SOURCE_PORTS,
    World,
    endpoint_of,
)
from tests.packets.node import SIZES
from tests.specification.verdicts import Verdict

MASQUERADE_PORTS = range(10000, 30000)
FEW_PORTS = range(12340, 12348)
"""Of some worlds, where ports are used again soon. Clients have one of them, too."""
_NODE = {family: pack(address) for family, address in NODE_ADDRESS.items()}
_ROUTER = {4: pack("172.16.0.1"), 6: pack("fd70::1")}
HALF_OPEN_PAIRS = SIZES.max_connections // 32
"""So many that are not established are held where nothing is evicted."""
_INGRESS = 1
_TABLES = ("connections", "new_connections")
_KEY = struct.Struct(">16s16sHHBBH")


class Player:
    """One node and one world, and the connections that the model has of it."""

    def __init__(self, node: ControlledNode) -> None:
        self.node = node
        self._passages = Passages(node)
        self.seen = self._passages.seen
        self._gc = GcProgram(node.pinned)
        self.begin(0)

    @property
    def runs(self) -> int:
        """How often a program was run."""
        return self._passages.runs

    def begin(self, seed: int) -> None:
        """Forget everything, and make the world of a seed."""
        node = self.node
        self.now = START_NS
        node.controls.set_time(self.now)
        node.controls.set_seed(seed)
        node.reset()
        node.pinned.map("masquerade_turns").update(bytes(4), bytes(8))
        # In some worlds no connection that is not established has room beside the others.
        self._held = HALF_OPEN_PAIRS if seed % 4 == 0 else 0
        node.half_open(self._held)
        self._ports = FEW_PORTS if seed % 3 == 1 else MASQUERADE_PORTS
        node.settings(self._ports.start, len(self._ports))
        self._left_alone: set[tuple[int, End, End]] = set()
        node.service_networks("10.96.0.0/16", "fd96::/112")
        self.world = World(seed)
        self.connections: dict[tuple[int, End, End], Connection] = {}
        self._direct: dict[tuple[int, End, End] | None, int] = {}
        self._endpoints: dict[int, set[tuple[int, End]]] = {}
        self._forgotten = 0
        self._passages.begin()
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
        elif isinstance(event, IcmpError):
            self._icmp_error(event)
        elif isinstance(event, Foreign):
            self._foreign(event)
        elif isinstance(event, Unrelated):
            self._unrelated(event)
        elif isinstance(event, Pause):
            self.now += event.ns
            self.node.controls.set_time(self.now)
        elif isinstance(event, Collect):
            self._collect(event)
        else:
            self.world.rewrite(event.service, event.number)
            self._program(event.service)
            self._forget_clients()

    def end(self) -> None:
        """Let so much time pass that nothing may be left, and hold the tables against that."""
        for _ in range(3):
            self.step(Pause(172_800_000_000_000))
            self.step(Collect())
        left = self.node.count("connections"), self.node.count("new_connections")
        if any(left):
            raise Different(f"after days of silence there are entries: {left}")
        if self.node.held() != self._held:
            raise Different(f"{self.node.held() - self._held} pairs are counted as half open")
        loads = self.node.pinned.map("backend_loads")
        if any(block.values.strip(b"\0") for block in loads.blocks(loads.max_entries)):
            raise Different("connections are counted that are gone")

    # -- the control plane --

    def _program(self, number: int) -> None:
        self.seen["writes of the control plane"] += 1
        key, entries = self.world.entries(number)
        self.node._execute(key, entries)
        self._endpoints[number] = {
            (port.protocol, backend.place)
            for port, entry in entries.items()
            for backend in entry.backends
        }

    def _forget_clients(self) -> None:
        """Affinity ends when an endpoint leaves, even if it comes back."""
        for key, (backend, _) in list(self._remembered.items()):
            if backend not in self.world.endpoints(key[1]):
                del self._remembered[key]

    # -- time --

    def _collect(self, event: Collect) -> None:
        gc = self._gc
        flags = {"crowded": event.crowded, "early_ports": event.crowded}
        gc.remove_closed(**flags)
        for name in _TABLES:
            gc.remove([key for key, _ in self.node.pinned.map(name).items()], **flags)
        self._passages.runs += 4
        left = {key for name in _TABLES for key, _ in self.node.pinned.map(name).items()}
        for key, connection in list(self.connections.items()):
            self._judge_collected(key, connection, left, event.crowded)

    def _judge_collected(
        self, key: tuple[int, End, End], connection: Connection, left: set[bytes], crowded: bool
    ) -> None:
        silent, lifetime = self.now - connection.last_ns(), connection.lifetime(crowded)
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
        key = self._named(event)
        connection = self.connections.get(key)
        self.node.controls.set_seed(event.number)
        if key in self._left_alone:
            return
        if event.sender == SERVER:
            if connection is not None:
                self._from_server(key, connection, event)
        else:
            self._from_client(key, connection, event)

    def _named(self, event: IcmpError | Foreign | Packet) -> tuple[int, End, End]:
        """Return the key of the connection that an event names."""
        protocol, target, _ = self.world.targets[event.family][event.target]
        client = pack(CLIENTS[event.family][event.client]), SOURCE_PORTS[event.port]
        return PROTOCOLS[protocol], client, target

    def _unrelated(self, event: Unrelated) -> None:
        data = unrelated_frame(event.kind, event.number)
        what, _, left = self._passages.through(data)
        if what not in ("leaves", "is delivered") or left != data:
            raise Different(f"an unrelated frame {what}, or is changed")
        self.seen["unrelated frames"] += 1

    def _foreign(self, event: Foreign) -> None:
        connection = self.connections.get(self._named(event))
        if connection is None or connection.seen[0] not in _NODE.values():
            return
        if connection.closed or connection.unsure or connection.unsure_state:
            return
        protocol, seen, backend = connection.protocol, connection.seen, connection.backend
        opening = Segment(SYN, 1, 0, 1000, chunk=SCTP_INIT)
        data = frame(protocol, seen, backend, opening)
        what, left = self._passages.leave(data)
        known = ends(left)
        about = f"netfilter's connection beside {connection}"
        if what == "is dropped" and self._ports == FEW_PORTS:
            return
        if what != "leaves" or known is None:
            raise Different(f"{about} {what}")
        source = known[1]
        if any(
            (source, backend) == (other.seen, other.backend) and other.protocol == protocol
            for other in self.connections.values()
        ):
            raise Different(f"{about} has a 5-tuple that is taken")
        problem = difference(data, left, source, backend)
        if problem or source[1] not in self._ports:
            raise Different(f"{about} leaves from {endpoint_of(source)}: {problem}")
        reply = frame(protocol, backend, source, Segment(SYN | ACK, 1, 2, 9, chunk=SCTP_INIT_ACK))
        what, arrived = self._passages.arrive(reply)
        problem = difference(reply, arrived, backend, seen)
        if what != "arrives" or problem:
            raise Different(f"{about}: its answer {what}: {problem}")
        self.seen["connections of netfilter by another port"] += 1

    def _icmp_error(self, event: IcmpError) -> None:
        connection = self.connections.get(self._named(event))
        if connection is None or connection.unsure or connection.unsure_state:
            return
        protocol = connection.protocol
        # As the error arrives, between the hooks, and as it leaves: author, receiver, quote.
        if event.about == 0:
            ways = [
                (connection.backend, connection.seen, connection.backend),
                (connection.backend, connection.routed, connection.backend),
                (connection.frontend, connection.client, connection.frontend),
            ]
        else:
            ways = [
                (connection.client, connection.frontend, connection.client),
                (connection.routed, connection.backend, connection.routed),
                (connection.seen, connection.backend, connection.seen),
            ]
        router = _ROUTER[event.family]
        frames = [
            icmp_error(
                author[0] if event.by_receiver else router,
                receiver[0],
                (protocol, receiver, quoted),
                event.kind,
                event.length,
            )
            for author, receiver, quoted in ways
        ]
        what, *passed = self._passages.through(frames[0])
        self.seen["errors about packets"] += 1
        if what != "leaves":
            raise Different(f"an error about a packet of {connection} {what}")
        for place, is_now, wanted in zip(("ingress", "egress"), passed, frames[1:], strict=True):
            if is_now != wanted:
                problem = other_bytes(wanted, is_now)
                raise Different(
                    f"an error about a packet of {connection}, after {place}: {problem}"
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

    def _from_client(
        self, key: tuple[int, End, End], connection: Connection | None, event: Packet
    ) -> None:
        segment = segment_of(key[0], connection, event)
        data = frame(*key, segment)
        is_unseen = key[2] in self.world.endpoints_of_all and key not in self._direct
        if (
            connection is None
            and not is_first(key[0], segment)
            and (is_unseen or self._owner(data))
        ):
            # Left out: the middle of a direct connection whose beginning nobody has seen. Another
            # connection may have its 5-tuple, and keeps it for a while after its end.
            return
        if event.kept:
            self._is_truncated(data, event.kept)
            return
        pieces = self._passages.pieces(data, event.cut)
        results = self._passages.all_through(pieces, event.number)
        self._judge_client(key, connection, event, segment, pieces[0], results[0])
        connection = self.connections.get(key)
        if connection and results[0][0] == "leaves":
            routed = connection.routed, connection.backend
            self._passages.follow(pieces, results, routed, (connection.seen, connection.backend))

    def _is_truncated(self, data: bytes, kept: int) -> None:
        """Send a frame that ends before its ports."""
        # A test run takes only frames that have all of the IP header.
        short = data[: max(34 if data[12] == 8 else 54, min(kept, transport_of(data)[1] + 3))]
        what, _, left = self._passages.through(short)
        if "dropped" not in what and left != short:
            raise Different(f"a truncated frame {what}, and is changed")
        self.seen["truncated frames"] += 1

    def _judge_client(
        self,
        key: tuple[int, End, End],
        connection: Connection | None,
        event: Packet,
        segment: Segment,
        data: bytes,
        passage: Passage,
    ) -> None:
        protocol = key[0]
        what, routed, left = passage
        opens = is_first(protocol, segment)
        if connection is not None:
            is_certain = not (connection.unsure or connection.unsure_state)
            reopens = protocol == TCP and opens and connection.closed
            if not reopens or not is_certain:
                problem = self._goes_on(connection, data, what, routed, left)
                if not problem:
                    if opens and not is_certain:
                        # Perhaps it has opened another connection, to the same backend.
                        service_port = self.world.targets[event.family][event.target].service_port
                        self._remembered.pop((key[1][0], service_port), None)
                    self._noted(connection, event, segment)
                    self.seen["packets of clients"] += 1
                    return
                if is_certain:
                    raise Different(f"client's packet of {connection}: {problem}")
            # The connection is over.
            del self.connections[key]
        if opens:
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
            if segment.flags & (FIN | RST):
                self._direct.pop(ends(data), None)
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
            self._opens_directly(key, event, segment, data, what, routed, left)
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
            if what == "is dropped at egress" and self._ports == FEW_PORTS:
                # No port was free, or none that the search has tried.
                self._left_alone.add(key)
                self.seen["connections without a port"] += 1
                return
            if what != "leaves":
                raise Different(f"{about}: {what}")
            self._opened(key, event, segment, data, routed, left, about)

    def _owner(self, data: bytes) -> Connection | None:
        """Return a connection that looks like the flow of a frame between the hooks."""
        flow = ends(data)
        for other in self.connections.values():
            if flow == (other.protocol, other.routed, other.backend):
                return other
        return None

    def _opens_directly(
        self,
        key: tuple[int, End, End],
        event: Packet,
        segment: Segment,
        data: bytes,
        what: str,
        routed: bytes,
        left: bytes,
    ) -> None:
        """Judge the first packet of a flow to no frontend."""
        if what not in ("leaves", "is delivered"):
            raise Different(f"for no Service: {what}")
        owner = self._owner(data)
        is_certain = owner and not (owner.closed or owner.unsure or owner.unsure_state)
        between, wire = ends(routed), ends(left)
        if left == data:
            if is_certain:
                raise Different(f"a direct flow has a 5-tuple of {owner}")
            self.seen["packets for no Service"] += 1
            if any((key[0], key[2]) in known for known in self._endpoints.values()):
                self._direct[key] = self.now
            if owner:
                # The entries of a closed connection make room.
                self._remove(owner)
            return
        _, client, target = key
        if owner is None or between is None or wire is None or between != wire:
            raise Different("for no Service: is changed")
        problem = difference(data, left, wire[1], target)
        if problem or wire[1][0] != client[0] or wire[1][1] not in self._ports:
            raise Different(f"a direct flow is changed to {wire}: {problem}")
        self.seen["direct flows by another port"] += 1
        self._add(key, event, segment, wire[1], wire[1], target, "direct")

    def _remove(self, connection: Connection) -> None:
        del self.connections[connection.protocol, connection.client, connection.frontend]

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
        client = key[1]
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
            if seen[0] != _NODE[event.family] or seen[1] not in self._ports:
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
        if masqueraded:
            self.seen["connections masqueraded"] += 1
        self._add(key, event, segment, between[1], seen, backend, about)

    def _add(
        self,
        key: tuple[int, End, End],
        event: Packet,
        segment: Segment,
        routed: End,
        seen: End,
        backend: End,
        about: str,
    ) -> None:
        """Add a connection that its first packet has opened."""
        protocol, client, target = key
        connection = Connection(
            *(protocol, client, target, backend),
            routed=routed,
            seen=seen,
            begun_ns=self.now,
            peers=(Peer(segment.sequence), Peer(event.number * 7 & 0xFFFFFFFF)),
        )
        self._are_apart(connection, about)
        self.seen["connections opened"] += 1
        self.seen["connections by another port"] += routed[1] != client[1]
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
        """Assert that no two connections share a 5-tuple, between the hooks or on the wire.

        Direct flows are remembered by fingerprints. A newer flow may overwrite that of an older
        one, so a history may have one of these.
        """
        direct = new.protocol, new.routed, new.backend
        if direct in self._direct and new.frontend != new.backend:
            is_recent = self.now - self._direct[direct] < (UDP_SECONDS - 5) * SECOND
            del self._direct[direct]
            if new.protocol == TCP or is_recent:
                self._forgotten += 1
                self.seen["direct flows forgotten"] += 1
            if self._forgotten > 1:
                raise Different(f"{about}: {new} has the 5-tuple of a direct flow")
        for key, other in list(self.connections.items()):
            if other.protocol != new.protocol or other.backend != new.backend:
                continue
            if other.routed != new.routed and other.seen != new.seen:
                continue
            self.seen["5-tuples taken over"] += 1
            if not (other.closed or other.unsure or other.unsure_state):
                is_waiting = not other.established
                # Where ports are short, one that waits for an answer may lose its own.
                if not is_waiting or self.now - other.last_ns() <= CROWDED_HALF_OPEN * SECOND:
                    raise Different(f"{about}: {new} has a 5-tuple of {other}")
            del self.connections[key]
            if other.seen == new.seen:
                self._left_alone.add(key)

    def _from_server(
        self, key: tuple[int, End, End], connection: Connection, event: Packet
    ) -> None:
        segment = segment_of(connection.protocol, connection, event)
        data = frame(connection.protocol, connection.backend, connection.seen, segment)
        pieces = self._passages.pieces(data, event.cut)
        results = self._passages.all_through(pieces, event.number)
        data = pieces[0]
        what, routed, left = results[0]
        opens = connection.protocol == TCP and is_opening(segment.flags)
        if opens and (connection.closed or connection.unsure_state) and left == data:
            # The backend opens a connection of its own, from the port of the closed one.
            del self.connections[key]
            return
        problem = what if what != "leaves" else ""
        problem = problem or difference(data, routed, connection.backend, connection.routed)
        problem = problem or difference(data, left, connection.frontend, connection.client)
        if not problem:
            between = connection.backend, connection.routed
            self._passages.follow(
                pieces, results, between, (connection.frontend, connection.client)
            )
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
