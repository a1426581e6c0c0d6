"""Scenarios: a connection in some state, and who acts on it at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scapy.layers.l2 import Ether
from scapy.packet import Packet

from tests.fuzz.controlled_node import ControlledNode
from tests.interleavings.actors import Actor, PacketActor, Sweep, Writes
from tests.interleavings.explorer import MOST_STATES, Explored, explore
from tests.interleavings.judge import Judge
from tests.interleavings.machine import Machine
from tests.interleavings.node import Write, recorded, tables_of
from tests.interleavings.shared import Shared
from tests.packets.node import SIZES
from tests.packets.packet import LINK, tcp
from tests.packets.peers import Peers, peers

NOW = 1_000_000_000_000
MANY = SIZES.max_connections // 32
"""So many pairs are half open that new ones are held where the kernel evicts."""

_STATES = {
    "new": (),
    "opened": ("S",),
    "answered": ("S", "<SA"),
    "established": ("S", "<SA", "A"),
    "closed": ("S", "<SA", "A", "FA", "<FA", "A"),
}
"""The packets before; ``<``: of the server."""

_PAIRS = {
    "new": (("S", "S"),),
    "opened": (("S", "<SA"), ("S", "S"), ("<SA", "<SA"), ("S", "<R"), ("R", "<SA")),
    "answered": (("A", "A"), ("A", "<SA"), ("A", "<R"), ("A", "R"), ("S", "<SA")),
    "established": (("FA", "<FA"), ("R", "<R"), ("A", "<FA"), ("FA", "<R")),
    "closed": (("S", "S"), ("S", "A"), ("S", "<FA")),
}
_PAIRS_OF_OTHERS = {
    "new": (("S", "S"),),
    "opened": (("S", "<SA"), ("<SA", "<SA")),
    "answered": (("A", "A"), ("A", "<A"), ("S", "<A")),
    "established": (("A", "<A"),),
}
"""The same without TCP. "A": any packet after the first."""

SECONDS = {"opened": 61, "answered": 61, "established": 86401, "closed": 61, "new": 0}
"""After which silence a connection in this state is over."""

_STREAM_SECONDS = 3
"""A server's datagrams that go on for longer establish a connection."""


class Scenario(NamedTuple):
    """A connection and those who act on it at the same time.

    * ``third``: beside the packets: nothing, ``sweep`` (of what is over), ``removal`` (by force),
      ``queue`` (the GC works off the queue of closed connections), ``eviction`` (of one half),
      ``backend`` (the Service gets another endpoint).
    """

    masquerade: bool
    evictable: bool
    state: str
    packets: tuple[str, ...]
    third: str = ""
    protocol: str = "TCP"

    def __str__(self) -> str:
        kind = "masqueraded" if self.masquerade else "plain"
        if self.protocol != "TCP":
            kind = f"{kind} {self.protocol}"
        where = " where the kernel evicts" if self.evictable else ""
        acting = " + ".join(("+".join(self.packets), *filter(None, [self.third])))
        return f"{kind}{where}, {self.state}: {acting}"


def scenarios() -> Iterator[Scenario]:
    """Yield all scenarios."""
    for protocol, pairs in (("TCP", _PAIRS), ("UDP", _PAIRS_OF_OTHERS), ("SCTP", _PAIRS_OF_OTHERS)):
        for masquerade in (False, True):
            for state, of_state in pairs.items():
                for scenario in _of_state(masquerade, state, of_state):
                    yield scenario._replace(protocol=protocol)


def _of_state(masquerade: bool, state: str, pairs: Sequence[tuple[str, ...]]) -> Iterator[Scenario]:
    for pair in pairs:
        for third in ("", "sweep", "removal", "backend"):
            yield Scenario(masquerade, False, state, pair, third)
        if state == "closed":
            yield Scenario(masquerade, False, state, pair, "queue")
    if state in ("established", "closed"):
        return
    for pair in pairs:
        for third in ("", "sweep", "removal", "backend"):
            yield Scenario(masquerade, True, state, pair, third)
    if state == "new":
        return
    for packet in dict.fromkeys(packet for pair in pairs for packet in pair):
        for third in ("eviction", "sweep", "removal"):
            yield Scenario(masquerade, True, state, (packet,), third)


@dataclass(slots=True)
class World:
    """A node with one Service, and the machine that has its programs."""

    node: ControlledNode
    machine: Machine
    names: tuple[str, ...]
    peers: Peers = field(default_factory=lambda: peers("TCP", 4))

    def shared(self, scenario: Scenario) -> tuple[Shared, list[Write]]:
        """Return the maps before a scenario, and the writes that give the Service a backend."""
        node, peers = self.node, self.peers
        node.reset()
        node.pinned.map("masquerade_turns").update(bytes(4), bytes(8))
        node.half_open(MANY if scenario.evictable else 0)
        peers.service(node, [peers.backend], masquerade=scenario.masquerade)
        before = tables_of(node.pinned, self.names)
        with recorded(node.pinned) as writes:
            peers.service(node, [peers.other_backend], masquerade=scenario.masquerade)
        known = [write for write in writes if write[0] in self.names]
        return Shared(before), known

    def packet(self, text: str, seen: str, now: int, name: str = "") -> PacketActor:
        """Make a packet of a side of the connection. ``seen``: the client as its server sees it."""
        peers, flags = self.peers, text.removeprefix("<")
        ends = (peers.backend, seen) if text.startswith("<") else (peers.external, peers.vip)
        return PacketActor(name or text, frame=bytes(LINK / self._packet(*ends, flags)), now=now)

    def _packet(self, source: str, destination: str, flags: str) -> Packet:
        if self.peers.protocol == "TCP":
            packet = tcp(source, destination, flags)
            packet.payload.window = 500
            return packet
        kinds = {"S": self.peers.opening, "SA": self.peers.answer, "A": self.peers.data}
        return kinds[flags](source, destination)

    def answer_of_other(self, seen: str, now: int) -> PacketActor:
        """Make the answer of the backend that the control plane has written meanwhile."""
        packet = self.peers.answer(self.peers.other_backend, seen)
        return PacketActor("<SA", frame=bytes(LINK / packet), now=now)

    def send(self, shared: Shared, packet: PacketActor) -> tuple[object, ...]:
        """Send a packet while nobody else acts; return what became of it."""
        while not packet.outcome:
            packet.step(self.machine, shared)
        return packet.outcome

    def explored(
        self, scenario: Scenario, most: int = MOST_STATES, *, gives_away: bool = True
    ) -> tuple[Explored, Judge]:
        """Explore a scenario, of so many states at most. ``gives_away``: see :class:`Shared`."""
        self.peers = peers(scenario.protocol, 4)
        shared, writes = self.shared(scenario)
        shared.gives_away = gives_away
        seen = self.peers.external
        self.machine.visible = set()
        for text in _STATES[scenario.state]:
            what, frame = self.send(shared, self.packet(text, seen, NOW))
            assert what == "leaves"
            if text == "S":
                assert isinstance(frame, bytes)
                out = Ether(frame).payload
                seen = self.peers.with_port(out.src, out.payload.sport)
        now = NOW + _seconds(scenario) * 1_000_000_000
        actors: list[Actor] = [
            self.packet(text, seen, now, f"{number} {text}")
            for number, text in enumerate(scenario.packets)
        ]
        may_drop = _may_end(scenario) or scenario.state == "new"
        judge = Judge(self, scenario.masquerade, _may_end(scenario), may_drop, now)
        if scenario.third == "eviction":
            return self._evicted(shared, actors, judge, most)
        actors += self._third(scenario, shared, writes, now)
        return explore(self.machine, shared, actors, judge, most), judge

    def _third(
        self, scenario: Scenario, shared: Shared, writes: list[Write], now: int
    ) -> list[Actor]:
        if scenario.third == "backend":
            return [Writes("control plane", writes=tuple(writes))]
        if scenario.third == "queue":
            return [Sweep("gc", is_of_queue=True, now=now)]
        if scenario.third in ("sweep", "removal"):
            flows = tuple({**shared.named("connections"), **shared.named("new_connections")})
            if not flows:
                return []
            return [Sweep("gc", flows=flows[:4], force=scenario.third == "removal", now=now)]
        return []

    def _evicted(
        self, shared: Shared, actors: list[Actor], judge: Judge, most: int
    ) -> tuple[Explored, Judge]:
        """Explore the eviction of each entry alone."""
        total = Explored()
        for key in shared.named("new_connections"):
            eviction = Writes("eviction", writes=(("new_connections", key, None),))
            alone = [actor.copy() for actor in actors]
            result = explore(self.machine, shared.copy(), [*alone, eviction], judge, most)
            total.states += result.states
            total.steps += result.steps
            total.ends += result.ends
            if result.problem:
                total.problem, total.schedule = result.problem, result.schedule
                break
        return total, judge


def _may_end(scenario: Scenario) -> bool:
    """True if the connection may be gone when its packets are on their way."""
    return scenario.third in ("sweep", "removal", "eviction", "queue") or scenario.state == "closed"


def _seconds(scenario: Scenario) -> int:
    """Return how much later than the packets before it a scenario is."""
    if scenario.third in ("sweep", "queue"):
        return SECONDS[scenario.state] if scenario.protocol == "TCP" else SECONDS["established"]
    return _STREAM_SECONDS if scenario.protocol == "UDP" else 0
