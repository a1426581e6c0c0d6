"""What must hold when all have acted, in whatever order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scapy.layers.l2 import Ether

from bpfsvc.base.address import pack
from tests.fuzz.frames import ends
from tests.interleavings.actors import Actor, PacketActor, Sweep
from tests.interleavings.shared import Shared
from tests.packets.packet import address_port

if TYPE_CHECKING:
    from tests.interleavings.scenarios import World

_DAYS = 172_800_000_000_000
_TABLES = ("connections", "new_connections")
_RETRIES = 4


class Judge:
    """Judges the ends of one scenario. ``miscounted``: ends with a wrong count of half-open pairs.

    * ``may_end``: the connection may be gone while packets are on their way.
    * ``may_drop``: packets may be dropped.
    """

    def __init__(
        self, world: World, masquerade: bool, may_end: bool, may_drop: bool, now: int
    ) -> None:
        self._world = world
        self._masquerade = masquerade
        self._may_end = may_end
        self._may_drop = may_drop
        self._now = now
        peers = world.peers
        self._client = address_port(peers.external)
        self._vip = address_port(peers.vip)
        self._backends = [address_port(peers.backend), address_port(peers.other_backend)]
        self.miscounted = 0

    def __call__(self, shared: Shared, actors: tuple[Actor, ...]) -> str:
        """Return what is wrong, or nothing."""
        problems = [self._of_packet(actor) for actor in actors if isinstance(actor, PacketActor)]
        for problem in (*problems, self._tuples_shared(shared)):
            if problem:
                return problem
        visible = self._world.machine.visible
        self._world.machine.visible = set()
        try:
            return self._goes_on(shared.copy()) or self._ends(shared.copy())
        finally:
            self._world.machine.visible = visible

    def _of_packet(self, actor: PacketActor) -> str:
        what, frame = actor.outcome
        if what != "leaves":
            return "" if self._may_drop else f"{actor.name} {what}"
        assert isinstance(frame, bytes)
        known, own = ends(frame), ends(actor.frame)
        assert known
        assert own
        _, source, destination = known
        if own[1] in self._backends:
            is_right = source == self._vip and destination == self._client
            is_past = self._may_end and frame == actor.frame
            return "" if is_right or is_past else f"{actor.name} leaves as {known}"
        return self._of_client(actor.name, source, destination)

    def _of_client(self, name: str, source: tuple[bytes, int], to: tuple[bytes, int]) -> str:
        if to == self._vip:
            return f"{name} leaves for the frontend"
        if to not in self._backends:
            return f"{name} leaves for {to}"
        node = pack(self._world.peers.node_address)
        if source[0] != (node if self._masquerade else self._client[0]):
            return f"{name} leaves from {source}"
        return ""

    def _tuples_shared(self, shared: Shared) -> str:
        """Return which two flows become the same one."""
        record = self._world.node.pinned.layout.maps["connections"].value
        known: dict[object, bytes] = {}
        for name in _TABLES:
            for key, value in shared.named(name).items():
                fields = record.unpack(value)
                if fields["reply"] or fields["masquerade_pending"]:
                    continue
                after = (key[37], value[:40])
                if known.setdefault(after, key) != key:
                    return f"two flows become {value[:40].hex()}"
        return ""

    def _goes_on(self, shared: Shared) -> str:
        """Return what is wrong when the client goes on: it must reach a backend, and be answered.

        Its kernel sends a SYN again, and again, if it is dropped or answered by nobody.
        """
        world, problem = self._world, ""
        for retry in range(_RETRIES):
            now = self._now + (retry + 1) * 1_000_000_000
            what, frame = world.send(shared, world.packet("S", world.peers.external, now))
            problem = f"a SYN afterwards {what}"
            if what != "leaves":
                continue
            assert isinstance(frame, bytes)
            known = ends(frame)
            assert known
            wrong = self._of_client("a SYN afterwards", known[1], known[2])
            if wrong:
                return wrong
            out = Ether(frame).payload
            seen = world.peers.with_port(out.src, out.payload.sport)
            answer = world.packet("<SA", seen, now)
            if known[2] != self._backends[0]:
                answer = world.answer_of_other(seen, now)
            _, back = world.send(shared, answer)
            assert isinstance(back, bytes)
            if back and ends(back) == (known[0], self._vip, self._client):
                return ""
            problem = f"the answer to a SYN afterwards leaves as {ends(back) if back else back}"
        return problem

    def _ends(self, shared: Shared) -> str:
        """Return what is left after days of silence and the connection GC."""
        world = self._world
        for round_ in range(3):
            flows = [key for name in _TABLES for key in shared.named(name)]
            now = self._now + (round_ + 1) * _DAYS
            sweep = Sweep("gc", flows=tuple(flows), now=now)
            while flows and not sweep.outcome:
                sweep.step(world.machine, shared)
        left = sum(len(shared.named(name)) for name in _TABLES)
        if left:
            return f"after days of silence there are {left} entries"
        table = shared.tables.number("half_open")
        count = shared.row(shared.find(table, bytes(4)))
        before = shared.tables.rows.get(shared.find(table, bytes(4)), bytes(8))
        self.miscounted += count != before
        return ""
