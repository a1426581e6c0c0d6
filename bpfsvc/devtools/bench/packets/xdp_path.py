"""The path of forwarded packets through the XDP program, for the suite ``programs``.

It asks the kernel for routes and neighbours, so it runs where there are some: in a namespace with
one uplink. Its neighbour has the uplink's own hardware address, which makes what is sent out again
a frame for this node; crossed connections make it one that is known. Only the TTL decreases, and
so these packets run some 250 times at most, by many calls.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.devtools.bench.packets.crossing import Crossing, CrossingTestbed, WrongPath
from bpfsvc.devtools.bench.packets.flows import Flow
from bpfsvc.devtools.bench.packets.test_runs import repeat, xdp_context
from bpfsvc.devtools.bench.packets.xdp_programs import SEND_BACK
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.links import End
from bpfsvc.devtools.lab.namespace import Namespace

PROGRAM = "xdp"

_TTL = 255
_RUNS = 250
"""In one call: even, and fewer than the TTL."""
_FEWER = 100
"""So many times less often than others this is measured, because its calls are slow."""
_GATEWAYS = {4: "192.168.50.1", 6: "fd50::1"}


class Uplink(NamedTuple):
    """The only interface of a namespace; all routes use it."""

    place: Namespace
    end: End

    @property
    def link(self) -> bytes:
        """The hardware addresses of what comes and of what goes: all are its own."""
        return bytes.fromhex(self.end.mac.replace(":", "")) * 2


@contextmanager
def uplink(pinned: Pinned) -> Iterator[Uplink]:
    """Make an uplink that a loaded build receives packets from and sends them by."""
    place, other = Namespace("edge"), Namespace("behind-edge")
    try:
        end, _ = links.cable(place, "eth0", other, "eth0")
        for key in ("net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"):
            place.sysctl(key, 1)
        for family, text in _GATEWAYS.items():
            gateway = ipaddress.ip_address(text)
            links.add_route(place, links.default_route(family), end, gateway)
            links.add_neighbour(end, gateway, end.mac)
        made = Uplink(place, end)
        record = pinned.layout.maps["uplinks"].value
        entry = record.pack({"ifindex": end.index, "mac": made.link[:6]})
        pinned.map("uplinks").update(struct.pack("=I", end.index), entry)
        yield made
    finally:
        place.close()
        other.close()


@dataclass(slots=True)
class Forwarded:
    """Packets that leave as ``after``, and come as such to leave as ``before``."""

    kind: str
    uplink: Uplink
    before: Flow
    after: Flow
    hook: str = PROGRAM
    mode: str = "xdp"

    def time(self, testbed: CrossingTestbed, program: int, times: int) -> float:  # noqa: ARG002
        """Return ns per packet of any program, the mean of some calls."""
        calls = _calls(times)
        return sum(self._run(program, self.before, _RUNS)[0] for _ in range(calls)) / calls

    def prove(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        """Return ns per packet of the program; WrongPath if they took another path."""
        # After a pause, one packet may be left to the stack.
        for flow in (self.before, self.after):
            self._run(program, flow, 1)
        total, calls, before = 0, _calls(times), testbed.counted()
        for _ in range(calls):
            cost, last = self._run(program, self.before, _RUNS)
            if last != (SEND_BACK, self._frame(self.before, _RUNS)):
                raise WrongPath(f"{self.kind}: a packet changed, or was not sent on")
            total += cost
        counted = testbed.counted() - before
        if counted != calls * _RUNS:
            raise WrongPath(f"{self.kind}: {counted} of {calls * _RUNS} packets were counted")
        if self._run(program, self.before, 1)[1] != (SEND_BACK, self._frame(self.after, 1)):
            raise WrongPath(f"{self.kind}: the packet was not translated")
        return total / calls

    def _run(self, program: int, flow: Flow, times: int) -> tuple[int, tuple[int, bytes]]:
        frame = self._frame(flow, 0)
        with self.uplink.place.entered():
            context = xdp_context(len(frame), self.uplink.end.index)
            run = repeat(program, frame, times, context)
        return run.nanoseconds, (run.verdict, run.packet)

    def _frame(self, flow: Flow, hops: int) -> bytes:
        return flow.frame(link=self.uplink.link, ttl=_TTL - hops)


def forwarded(name: str, crossing: Crossing, uplink: Uplink) -> Iterator[Forwarded]:
    """Return both directions of a crossing that is masqueraded, and established."""
    assert crossing.leaves_as is not None
    there = crossing.to(crossing.front)
    wire = crossing.to(crossing.back)._replace(source=crossing.leaves_as)
    yield Forwarded(f"forwarded, {name}", uplink, there, wire)
    yield Forwarded(f"forwarded, {name}, reply", uplink, wire.reply, there.reply)


def _calls(times: int) -> int:
    return max(1, times // _FEWER // _RUNS)
