"""Connections whose packets can be translated again and again.

A test run that repeats gives a program the packet that its last run left. Translated once, such a
packet belongs to no connection any more, and what would be timed is how fast the program finds that
out. So there are two Services here in place of one: ``front`` is served by ``back``, and ``back``
by ``front``. A packet to one becomes one to the other, and the next time one to the first again;
replies likewise. Masquerades are crossed likewise: the node leaves as itself for the client and,
its addresses exchanged for a moment, as the client for itself.

The programs write all entries themselves, as handshakes run through them packet by packet; every
packet that comes out is compared with what it must be, byte for byte.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bpfsvc.base.address import pack
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.devtools.bench.packets.flows import ACK, SYN, Flow, Place
from bpfsvc.devtools.bench.packets.test_runs import repeat, skb_context
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, PortEntries, ServicePort
from bpfsvc.services.plans.diff import plan
from bpfsvc.services.plans.ids import Ids

PASS = 0xFFFFFFFF
"""TC_ACT_UNSPEC, -1: no verdict."""

_SECONDS = 3600
_BACKENDS = 64


class WrongPath(BpfsvcError):
    """A packet did not become what it must be on the path that is measured."""


class Ends(NamedTuple):
    """The addresses of one family: a client, this node, a cluster IP and a pod elsewhere."""

    client: str
    node: str
    front: str
    back: str


V4 = Ends("192.0.2.7", "192.168.50.11", "10.96.0.10", "10.244.2.11")
V6 = Ends("2001:db8::7", "fd50::11", "fd96::10", "fd44:2::11")


class Crossing(NamedTuple):
    """A connection from ``client`` to ``front``, served by ``back``, and how it leaves the node."""

    client: Place
    front: Place
    back: Place
    protocol: int
    leaves_as: Place | None = None
    """Masqueraded to this."""

    def to(self, place: Place) -> Flow:
        """Return the flow from the client to a place."""
        return Flow(self.client, place, self.protocol)

    @property
    def other(self) -> Crossing:
        """The crossing that translates a translated packet back."""
        return self._replace(front=self.back, back=self.front)


class CrossingTestbed:
    """A loaded build that holds Services; nothing of it is attached to an interface.

    What it held before is gone.
    """

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        self._tables = ServiceMaps(pinned)
        self._ids = Ids(_BACKENDS)
        self.context = skb_context(socket.if_nametoindex("lo"))
        for name in ("connections", "new_connections", "frontends"):
            found = pinned.map(name)
            found.delete_many([key for key, _ in found.items()])
        filters = pinned.map("port_filters")
        for index in range(filters.max_entries):
            filters.update(struct.pack("=I", index), bytes(filters.value_size))
        self._settings(Place(V4.node, 0))
        self._addresses(V4.node, V6.node)
        # As an agent does it; until then every destination is looked at.
        self._tables.know_destinations()
        self._tables.set_service_networks(())

    # -- what the node holds ----------------------------------------------------------------------

    def serve(self, front: Place, back: Place, protocol: int, *, masquerade: bool = False) -> None:
        """Program a Service with one backend."""
        policy = Policy(0, 1, masquerade, False)
        family = 6 if ":" in front.address else 4
        name = f"{front.address}-{front.port}"
        port = ServicePort("bench", name, "", protocol, family)
        frontend = Frontend(pack(front.address), front.port, protocol)
        entries = PortEntries(
            front.port,
            (Backend(pack(back.address), back.port),),
            {frontend: Policies(policy, policy, policy)},
        )
        self._tables.execute(plan({}, {port: entries}, self._ids))

    def cross(self, crossing: Crossing) -> None:
        """Program the two Services of a crossing and establish its connections, to and fro."""
        masquerade = crossing.leaves_as is not None
        for one in (crossing, crossing.other):
            self.serve(one.front, one.back, one.protocol, masquerade=masquerade)
        for one in (crossing, crossing.other):
            self._establish(one)
        if crossing.leaves_as is not None:
            exchanged = crossing._replace(client=crossing.leaves_as, leaves_as=crossing.client)
            with self._leaving_as(crossing.client):
                self._establish(exchanged)
                self._establish(exchanged.other)

    def _establish(self, crossing: Crossing) -> None:
        """Run the first packet, the first reply and an acknowledgement through the programs."""
        with self._leaving_as(crossing.leaves_as):
            self._forth(crossing, SYN)
            self._back(crossing, SYN | ACK)
            self._forth(crossing, ACK)

    def _forth(self, crossing: Crossing, flags: int) -> None:
        routed = crossing.to(crossing.back)
        self._expect("ingress", crossing.to(crossing.front), routed, flags)
        if crossing.leaves_as:
            self._expect("egress", routed, routed._replace(source=crossing.leaves_as), flags)

    def _back(self, crossing: Crossing, flags: int) -> None:
        reply = crossing.to(crossing.back).reply
        if crossing.leaves_as:
            wire = reply._replace(destination=crossing.leaves_as)
            self._expect("ingress", wire, reply, flags)
        self._expect("egress", reply, crossing.to(crossing.front).reply, flags)

    def _expect(self, hook: str, before: Flow, after: Flow, flags: int) -> None:
        run = repeat(self._pinned.program(hook), before.frame(flags), 1, self.context)
        if run.verdict != PASS or run.packet != after.frame(flags):
            raise WrongPath(f"{hook}: a packet of {before} does not become one of {after}")

    @contextmanager
    def _leaving_as(self, place: Place | None) -> Iterator[None]:
        if place is None:
            yield
            return
        self._settings(place)
        v4, v6 = (V4.node, place.address) if ":" in place.address else (place.address, V6.node)
        self._addresses(v4, v6)
        yield
        self._addresses(V4.node, V6.node)

    def _settings(self, leaves_as: Place) -> None:
        record = self._pinned.layout.maps["settings"].value
        entry = record.pack(
            {
                "masquerade_first": leaves_as.port,
                "masquerade_ports": 1,
                "tcp_established_seconds": _SECONDS,
                "tcp_half_closed_seconds": _SECONDS,
                "tcp_closed_seconds": _SECONDS,
                "udp_seconds": _SECONDS,
                "half_open_seconds": _SECONDS,
            }
        )
        self._pinned.map("settings").update(bytes(4), entry)

    def _addresses(self, v4: str, v6: str) -> None:
        """Set the addresses of this node's interface, for masquerading."""
        record = self._pinned.layout.maps["interfaces"].value
        entry = record.pack({"v4": pack(v4), "v6": pack(v6)})
        self._pinned.map("interfaces").update(self.context[40:44], entry)

    # -- what it has done -------------------------------------------------------------------------

    def counted(self) -> int:
        """Return the packets of all backends, in both directions, since they were programmed."""
        return self._sum("packets") + self._sum("reply_packets")

    def chosen(self) -> int:
        """Return how often a backend has been chosen."""
        return self._sum("connections")

    def _sum(self, name: str) -> int:
        found = self._pinned.map("backend_counters")
        codec = self._pinned.layout.maps["backend_counters"].value.pick(name)
        total = 0
        for number in range(1, self._ids.max_backends):
            raw = found.lookup(struct.pack("=I", number))
            if raw is None:
                break
            for at in range(0, len(raw), found.cpu_value_size):
                total += codec.unpack_from(raw, at)[0]
        return total
