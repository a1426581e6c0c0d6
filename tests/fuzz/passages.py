"""Frames on their way through the node: ingress, what the kernel would do, egress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random
from typing import NamedTuple

from bpfsvc.base.address import pack
from bpfsvc.base.fast_path import FAST
from bpfsvc.datapath.maps.pins import Pinned
from tests.fuzz.controlled_node import ControlledNode
from tests.fuzz.frames import (
    FIN,
    RST,
    SCTP,
    SYN,
    TCP,
    End,
    a_hop_back,
    addresses_of,
    difference,
    fragments_of,
    is_a_hop_on,
    transport_of,
)
from tests.fuzz.network import Network, Paths
from tests.fuzz.runners import HookRunner, XdpRunner
from tests.fuzz.world import NODE_ADDRESS
from tests.packets.node import REDIRECT, SHOT, UNSPEC

_NODE_ADDRESSES = frozenset(map(pack, NODE_ADDRESS.values()))
_XDP_PASS, _XDP_TX = 2, 3
_MACS = 12
"""Bytes of both hardware addresses of a frame."""
_VERDICTS = {UNSPEC: "passes", SHOT: "is dropped", REDIRECT: "is sent back"}


class Passage(NamedTuple):
    """What becomes of a frame, the frame between the hooks, and as it leaves.

    ``at_once``: it is not seen between the hooks; ``routed`` is as it leaves.
    """

    what: str
    routed: bytes
    left: bytes
    at_once: bool = False


class Different(AssertionError):
    """The programs have done what the model does not allow."""


class Programs:
    """The programs of a build that interfaces run."""

    def __init__(self, pinned: Pinned, network: Network) -> None:
        self.ingress = HookRunner(pinned.program("ingress"))
        self.egress = HookRunner(pinned.program("egress"))
        self.xdp = XdpRunner(pinned.program("xdp"), network.uplink)


class Passages:
    """The interfaces of a node.

    * ``runs``: how often a program was run. ``seen``: how often what was seen.
    """

    def __init__(self, node: ControlledNode, network: Network) -> None:
        self._network = network
        self._ingress: dict[int, HookRunner] = {}
        self._egress: dict[int, HookRunner] = {}
        self.attach(Programs(node.pinned, network))
        self.use(Paths(), False)
        self._fragment_id = 0
        self.runs = 0
        self.seen: Counter[str] = Counter()

    def begin(self) -> None:
        """Begin a history: fragments are numbered from 1."""
        self._fragment_id = 0

    def attach(self, programs: Programs, interfaces: Collection[int] = ()) -> None:
        """Attach the programs of a build to some interfaces; to all if none is named."""
        for interface in interfaces or self._network.interfaces:
            self._ingress[interface] = programs.ingress
            self._egress[interface] = programs.egress
            if interface == self._network.uplink:
                self._xdp = programs.xdp

    def use(self, paths: Paths, fast_outside: bool) -> None:
        """Expect packets by these paths; ``fast_outside``: connections from outside are fast."""
        self._paths = paths
        self._all_seen = paths.level != FAST and not fast_outside

    def through(self, data: bytes) -> Passage:
        """Send a frame through the node, from its sender to its receiver."""
        came_by = self._network.interface_to(addresses_of(data)[0])
        if self._paths.xdp and came_by == self._network.uplink:
            passage = self._by_xdp(data)
            if passage:
                return passage
        verdict, routed, mark = self._ingress[came_by].run(data, came_by, came_by)
        self.runs += 1
        is_fast = verdict == REDIRECT and is_a_hop_on(data, routed)
        if verdict != UNSPEC and not is_fast:
            return Passage(f"{_VERDICTS.get(verdict, verdict)} at ingress", routed, routed)
        receiver = addresses_of(routed)[1]
        if receiver in _NODE_ADDRESSES:
            # The node's own stack receives it.
            return Passage("is delivered", routed, routed)
        leaves_by = self._network.interface_to(receiver)
        if is_fast:
            self.seen[f"packets by the fast path, level {self._paths.level}"] += 1
            if self._all_seen and _opens_or_ends(data):
                raise Different("netfilter does not see how a connection begins or ends")
            if routed[:_MACS] != data[:_MACS]:
                return self._sent_on(data, routed, leaves_by)
        verdict, left, _ = self._egress[leaves_by].run(routed, leaves_by, came_by, mark)
        self.runs += 1
        at_once = is_fast and left == routed
        if is_fast:
            routed, left = a_hop_back(data, routed), a_hop_back(data, left)
        if verdict != UNSPEC:
            return Passage(f"{_VERDICTS.get(verdict, verdict)} at egress", routed, left)
        return Passage("leaves", routed, left, at_once)

    def _by_xdp(self, data: bytes) -> Passage | None:
        """Run XDP on a frame; return None if it leaves the frame to the stack."""
        verdict, left = self._xdp.run(data)
        self.runs += 1
        if verdict == _XDP_PASS:
            if left != data:
                raise Different("XDP passes a frame that it has changed")
            return None
        if verdict != _XDP_TX or not is_a_hop_on(data, left):
            return Passage(f"gets the verdict {verdict} of XDP", left, left)
        self.seen["packets by XDP"] += 1
        return self._sent_on(data, left, self._network.uplink)

    def _sent_on(self, data: bytes, left: bytes, leaves_by: int) -> Passage:
        """Return the passage of a frame that a program has addressed to the next hop."""
        if left[:_MACS] != self._network.link_header(leaves_by):
            raise Different(f"leaves with the hardware addresses {left[:_MACS].hex()}")
        left = a_hop_back(data, left)
        return Passage("leaves", left, left, at_once=True)

    def leave(self, data: bytes) -> tuple[str, bytes]:
        """Send a frame of the node itself through egress."""
        leaves_by = self._network.interface_to(addresses_of(data)[1])
        verdict, left, _ = self._egress[leaves_by].run(data, leaves_by, 0)
        self.runs += 1
        return ("leaves" if verdict == UNSPEC else f"{_VERDICTS.get(verdict, verdict)}"), left

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
                if passage != Passage("is sent back at ingress", pieces[at], pieces[at]):
                    raise Different(f"a fragment before the first one {passage.what}")
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
        for piece, passage in zip(pieces[1:], results[1:], strict=True):
            self.seen["later fragments"] += 1
            problem = passage.what if passage.what != "leaves" else ""
            if not passage.at_once:
                problem = problem or difference(piece, passage.routed, *routed, later=True)
            problem = problem or difference(piece, passage.left, *left, later=True)
            if problem:
                raise Different(f"a later fragment: {problem}")


def _opens_or_ends(data: bytes) -> bool:
    protocol, at = transport_of(data)
    return protocol == TCP and bool(data[at + 13] & (SYN | FIN | RST))
