"""Frames on their way through the node: ingress, what the kernel would do, egress."""

from __future__ import annotations

from collections import Counter
from random import Random

from bpfsvc.base.address import pack
from tests.fuzz.controlled_node import ControlledNode, Runner
from tests.fuzz.frames import (
    SCTP,
    End,
    addresses_of,
    difference,
    fragments_of,
    transport_of,
)
from tests.fuzz.world import NODE_ADDRESS
from tests.packets.node import REDIRECT, SHOT, UNSPEC

_NODE_ADDRESSES = frozenset(map(pack, NODE_ADDRESS.values()))
_VERDICTS = {UNSPEC: "passes", SHOT: "is dropped", REDIRECT: "is sent back"}

Passage = tuple[str, bytes, bytes]
"""What becomes of a frame, the frame between the hooks, and as it leaves."""


class Different(AssertionError):
    """The programs have done what the model does not allow."""


class Passages:
    """The hooks of a node.

    * ``runs``: how often a program was run. ``seen``: how often what was seen.
    """

    def __init__(self, node: ControlledNode) -> None:
        self._ingress = Runner(node.pinned.program("ingress"), node.interface)
        self._egress = Runner(node.pinned.program("egress"), node.interface)
        self._interface = node.interface
        self._fragment_id = 0
        self.runs = 0
        self.seen: Counter[str] = Counter()

    def begin(self) -> None:
        """Begin a history: fragments are numbered from 1."""
        self._fragment_id = 0

    def through(self, data: bytes) -> Passage:
        """Send a frame through both hooks."""
        verdict, routed, mark = self._ingress.run(data, self._interface)
        self.runs += 1
        if verdict != UNSPEC:
            return f"{_VERDICTS.get(verdict, verdict)} at ingress", routed, routed
        if addresses_of(routed)[1] in _NODE_ADDRESSES:
            # The node's own stack receives it.
            return "is delivered", routed, routed
        verdict, left, _ = self._egress.run(routed, self._interface, mark)
        self.runs += 1
        if verdict != UNSPEC:
            return f"{_VERDICTS.get(verdict, verdict)} at egress", routed, left
        return "leaves", routed, left

    def leave(self, data: bytes) -> tuple[str, bytes]:
        """Send a frame of the node itself through egress."""
        verdict, left, _ = self._egress.run(data, 0)
        self.runs += 1
        return ("leaves" if verdict == UNSPEC else f"{_VERDICTS.get(verdict, verdict)}"), left

    def arrive(self, data: bytes) -> tuple[str, bytes]:
        """Send a frame for the node itself through ingress."""
        verdict, arrived, _ = self._ingress.run(data, self._interface)
        self.runs += 1
        return ("arrives" if verdict == UNSPEC else f"{_VERDICTS.get(verdict, verdict)}"), arrived

    def pieces(self, data: bytes, cut: int) -> list[bytes]:
        """Return a frame as it is sent: whole, or in fragments."""
        protocol, at = transport_of(data)
        # The checksum of SCTP covers all fragments: such packets are dropped.
        if not cut or protocol == SCTP or len(data) - at <= cut:
            return [data]
        self._fragment_id = self._fragment_id + 1 & 0xFFFF
        return fragments_of(data, self._fragment_id, cut)

    def all_through(self, pieces: list[bytes], number: int) -> list[Passage]:
        """Send fragments in an order of this number; return what becomes of each.

        A fragment that comes before the first one has to wait.
        """
        if len(pieces) == 1:
            return [self.through(pieces[0])]
        order = list(range(len(pieces)))
        Random(number).shuffle(order)
        results: dict[int, Passage] = {}
        while order:
            at = order.pop(0)
            passage = self.through(pieces[at])
            if at and 0 not in results:
                if passage != ("is sent back at ingress", pieces[at], pieces[at]):
                    raise Different(f"a fragment before the first one {passage[0]}")
                order.append(at)
                self.seen["fragments that wait"] += 1
            else:
                results[at] = passage
        return [results[at] for at in range(len(pieces))]

    def follow(
        self,
        pieces: list[bytes],
        results: list[Passage],
        routed: tuple[End, End],
        left: tuple[End, End],
    ) -> None:
        """Assert that later fragments go where the first one went."""
        for piece, (what, between, after) in zip(pieces[1:], results[1:], strict=True):
            self.seen["later fragments"] += 1
            problem = what if what != "leaves" else ""
            problem = problem or difference(piece, between, *routed, later=True)
            problem = problem or difference(piece, after, *left, later=True)
            if problem:
                raise Different(f"a later fragment: {problem}")
