"""The machine does what the kernel does: the same packets, verdicts and entries."""

from __future__ import annotations

import pytest
from scapy.packet import Packet

from tests.fuzz.runners import HookRunner
from tests.interleavings.actors import UNSPEC, generator_state
from tests.interleavings.machine import Run
from tests.interleavings.node import tables_of
from tests.interleavings.scenarios import MANY, NOW, World
from tests.interleavings.shared import Shared
from tests.packets.packet import LINK, address_port, sctp_init, tcp, udp
from tests.packets.peers import ALL_PEERS, Peers

pytestmark = pytest.mark.slow

_FLAGS = ("S", "<SA", "A", "PA", "<PA", "SF", "FA", "<FA", "A", "<R", "S", "<SA", "R", "A")


class Beside:
    """The kernel and the machine, which get the same frames."""

    def __init__(self, world: World, shared: Shared) -> None:
        self._node, self._machine, self._shared = world.node, world.machine, shared
        self._kernel = {
            hook: HookRunner(world.node.pinned.program(hook)) for hook in ("ingress", "egress")
        }
        self.run = Run(now=NOW, random=generator_state(0))

    def frame(self, hook: str, frame: bytes, mark: int) -> tuple[int, bytes, int]:
        """Run a hook in both; assert that the same comes out, and return it."""
        interface = self._node.interface
        verdict, after, mark_after = self._kernel[hook].run(frame, interface, interface, mark)
        self._machine.visible = set()
        self.run.begin(hook, frame, interface, interface, mark)
        self._machine.go_on(self._shared, self.run)
        assert (self.run.verdict, self.run.frame) == (verdict, after)
        assert self.run.mark == mark_after
        for name in ("connections", "new_connections"):
            assert self._shared.named(name) == dict(self._node.pinned.map(name).items())
        return verdict, after, mark_after

    def forward(self, frame: bytes) -> bytes:
        """Send a frame through both hooks; return what leaves, or nothing."""
        verdict, routed, mark = self.frame("ingress", frame, 0)
        if verdict != UNSPEC:
            return b""
        verdict, left, _ = self.frame("egress", routed, mark)
        return left if verdict == UNSPEC else b""


def _packet(protocol: str, source: str, destination: str, flags: str) -> Packet:
    if protocol == "TCP":
        return tcp(source, destination, flags)
    return udp(source, destination) if protocol == "UDP" else sctp_init(source, destination)


@pytest.mark.parametrize("peers", ALL_PEERS, ids=str)
@pytest.mark.parametrize(
    ("masquerade", "pairs"), [(False, 0), (True, 0), (False, MANY), (True, MANY)]
)
def test_a_connection_is_the_same_in_both(
    world: World, peers: Peers, masquerade: bool, pairs: int
) -> None:
    node = world.node
    node.reset()
    node.half_open(pairs)
    node.controls.set_time(NOW)
    node.controls.set_seed(0)
    peers.service(node, [peers.backend, peers.other_backend], masquerade=masquerade)
    beside = Beside(world, Shared(tables_of(node.pinned, world.names)))
    seen, backend = peers.external, peers.backend
    for text in _FLAGS:
        flags = text.removeprefix("<")
        ends = (backend, seen) if text.startswith("<") else (peers.external, peers.vip)
        packet = _packet(peers.protocol, *ends, flags)
        left = beside.forward(bytes(LINK / packet))
        if left and not text.startswith("<"):
            out = type(packet)(left[14:])
            seen = peers.with_port(out.src, out.payload.sport)
            backend = peers.with_port(out.dst, out.payload.dport)
    assert address_port(seen)[1]
    assert beside.run.verdict is not None


def test_another_row_is_given_to_a_key_at_once(world: World) -> None:
    """Who still points to a row that was freed sees that of the next key."""
    shared = Shared(tables_of(world.node.pinned, world.names))
    table = world.names.index("connections")
    first, second = bytes(39) + b"\1", bytes(39) + b"\2"
    shared.put(table, first, bytes(96), 0)
    row = shared.find(table, first)
    shared.delete(table, first)
    shared.put(table, second, b"\1" * 96, 0)
    assert shared.find(table, second) == row
    assert not shared.find(table, first)
