"""A Service with a schedule that compares loads, and connections that open and close quickly.

A packet is the bytes of one that scapy has made, with other ports: ten thousand connections are
opened in seconds. All have the checksum of the first; the programs only bring it up to date.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.datapath.maps.backend_loads import read_load
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, PortEntries, ServicePort
from bpfsvc.services.scheduling.extra import extra_entries
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.node import REDIRECT, SHOT, UNSPEC, Node
from tests.packets.packet import address_port, frame, tcp
from tests.packets.peers import Peers
from tests.specification.ipvs import Destination

FIRST_PORT = 9000
"""Of the backends: one port more for each."""


HALF_OPEN = -100_000
"""A count of half-open pairs by which all entries are where nothing is evicted."""

WEIGHTS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3)


class Loaded:
    """A Service of some backends, and its clients."""

    def __init__(self, node: Node, peers: Peers) -> None:
        self.node, self.peers = node, peers
        self.backends: list[str] = []
        self._frames: dict[tuple[str, str], bytes] = {}
        self._record = node.pinned.layout.maps["backend_loads"].value

    def program(
        self,
        schedule: Schedule,
        weights: Sequence[int],
        *,
        table: Sequence[int] = (),
        reject: bool = False,
        first: int = 0,
        pods: bool = True,
    ) -> None:
        """Write the Service: a backend for each weight; backends of weight 0 are last.

        ``first``: slots that it may not use. ``pods``: False if these have none of the backends.
        """
        numbers = range(FIRST_PORT, FIRST_PORT + len(weights))
        self.backends = [self.peers.with_port(self.peers.backend, number) for number in numbers]
        others = [
            self.peers.with_port(self.peers.backend, 7000 + number) for number in range(first)
        ]
        used = [backend for backend, weight in zip(self.backends, weights, strict=True) if weight]
        quiesced = [backend for backend in self.backends if backend not in used]
        entries = tuple(Backend(*address_port(backend)) for backend in (*others, *used, *quiesced))
        policy = Policy(first, len(used), False, reject, len(table))
        of_pods = policy if pods else Policy(0, 0, False, False)
        policies = Policies(of_pods, policy, policy, schedule=schedule)
        number = PROTOCOLS[self.peers.protocol]
        run = struct.pack(f"={len(table)}H", *table)
        extra = extra_entries(
            ((first, run),) if table else (),
            ((first, tuple(filter(None, weights))),) if schedule.counts else (),
        )
        port = ServicePort("default", "web", "", number, self.peers.family)
        vips = (self.peers.vip, self.peers.other_vip)
        frontends = {Frontend(*address_port(vip), number): policies for vip in vips}
        self.node.program({port: PortEntries(80, entries, frontends, extra)})

    def client(self, port: int) -> str:
        """Return a client by its port."""
        return self.peers.with_port(self.peers.client, port)

    # -- quick packets of TCP --

    def open(self, port: int, vip: str = "") -> int | None:
        """Send the first packet of a client; return the number of its backend, None if refused."""
        verdict, after = self.node.run_frame("ingress", self._frame("S", port, vip))
        if verdict != UNSPEC:
            assert verdict in (SHOT, REDIRECT), verdict
            return None
        (port,) = struct.unpack_from("!H", after, self._ports + 2)
        return int(port) - FIRST_PORT

    def send(self, port: int, flags: str, vip: str = "") -> None:
        """Send a packet of the client to the frontend."""
        assert self.node.run_frame("ingress", self._frame(flags, port, vip))[0] == UNSPEC

    def answer(self, port: int, backend: int, flags: str) -> None:
        """Send a packet of a backend to the client."""
        frame = bytearray(self._base("answer", flags))
        struct.pack_into("!HH", frame, self._ports, FIRST_PORT + backend, port)
        assert self.node.run_frame("egress", bytes(frame))[0] == UNSPEC

    def flow(self, port: int, vip: str = "") -> bytes:
        """Return the key of the entry by which a client's packets find their backend."""
        opening = self.peers.opening(self.client(port), vip or self.peers.vip)
        return self.node.flow("ingress", opening)

    def remove(self, port: int, vip: str = "") -> None:
        """Remove a connection, as the connection GC does."""
        assert self.node.collect(self.flow(port, vip), force=True) == 1

    @property
    def _ports(self) -> int:
        return 14 + (20 if self.peers.family == 4 else 40)

    def _frame(self, flags: str, port: int, vip: str) -> bytes:
        frame = bytearray(self._base(vip or self.peers.vip, flags))
        struct.pack_into("!H", frame, self._ports, port)
        return bytes(frame)

    def _base(self, what: str, flags: str) -> bytes:
        """Return a packet to a frontend, or with ``answer`` one of a backend."""
        if (what, flags) not in self._frames:
            ends = (self.peers.client, what)
            if what == "answer":
                ends = (self.peers.with_port(self.peers.backend, 1), self.peers.client)
            self._frames[what, flags] = frame(tcp(*ends, flags))
        return self._frames[what, flags]

    # -- numbers --

    def counters(self) -> list[int]:
        """Return the id of the counters of each backend."""
        (state,) = self.node.applied_state.of(("default", "web")).values()
        known = state.counters()
        return [known[address_port(backend)] for backend in self.backends]

    def numbers(self) -> list[tuple[int, int]]:
        """Return active and inactive connections of each backend."""
        loads = self.node.pinned.map("backend_loads")
        raw = [loads.lookup(struct.pack("=I", counter)) or b"" for counter in self.counters()]
        return [read_load(value, self._record).connections for value in raw]

    def put(self, numbers: Sequence[tuple[int, int]]) -> None:
        """Set the numbers of all backends."""
        loads = self.node.pinned.map("backend_loads")
        for counters, pair in zip(self.counters(), numbers, strict=True):
            active, inactive = pair
            value = self._record.pack({"connections": active + (inactive << 32) & 2**64 - 1})
            loads.update(struct.pack("=I", counters), value)


def program(service: Loaded, schedule: Schedule, weights: Sequence[int]) -> list[Destination]:
    """Write the Service as the agent lays it out; return its destinations in the same order."""
    if schedule is Schedule.OVF:
        weights = sorted(weights, reverse=True)
    shown = [1] * len(weights) if schedule is Schedule.LC else weights
    service.program(schedule, shown, reject=True)
    places = map(address_port, service.backends)
    return [Destination(*target, weight) for target, weight in zip(places, weights, strict=True)]
