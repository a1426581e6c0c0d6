"""What the programs themselves cost: nanoseconds per packet, of test runs that repeat.

A program of two instructions is measured right before each path; what a path costs is what it takes
above that. Every path is proved: a translated packet must come out as it went in after an even
number of runs, and the counters of backends must have counted each (see ``crossing``).

First packets cannot be repeated, for the second is not the first. Each is one of its own, timed by
a call of its own, and so is the empty program beside them: the figure includes colder caches.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.instructions import Code
from bpfsvc.datapath.loader.builder import make_build
from bpfsvc.datapath.loader.creation import load_program
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.bench.modes import DEFAULT
from bpfsvc.devtools.bench.packets.crossing import (
    PASS,
    V4,
    V6,
    Crossing,
    CrossingTestbed,
    Ends,
    WrongPath,
)
from bpfsvc.devtools.bench.packets.flows import ACK, ARP_REQUEST, SYN, Flow, Place
from bpfsvc.devtools.bench.packets.test_runs import SCHED_CLS, XDP, repeat
from bpfsvc.devtools.bench.packets.xdp_path import PROGRAM as EDGE
from bpfsvc.devtools.bench.packets.xdp_path import Uplink, forwarded, uplink
from bpfsvc.devtools.bench.packets.xdp_programs import PASS as XDP_PASS
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, Step
from bpfsvc.devtools.lab import sandbox

_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
_NAMES = {_TCP: "TCP", _UDP: "UDP"}

_FRONT, _MASQUERADED, _FIRST, _EDGE, _PLAIN_PORT = 80, 81, 82, 83, 84
"""Ports of Services."""
_BACK = 8000
"""What is added to them where the Service is served."""
_ELSEWHERE = 5201
"""A port of no Service, and one that shares no place in the port filter with such a port."""
_UNKNOWN = {V4: "203.0.113.7", V6: "2001:db8:ffff::7"}
"""Addresses in no entry; others of these packets go to another port of a backend."""
_PLAIN = {V4: "10.244.2.12", V6: "fd44:2::12"}
"""Backends that are frontends of nothing, as pods are."""

_CLIENT, _LEAVES_AS = 40001, 61001

_ROUND_SECONDS, _LOAD_SECONDS = 1.8, 5.0

_FEWER = 200
"""So many times less often than others, paths are measured that take a call for each packet."""


class _Path(Protocol):
    """A hook, and packets that take one path through its program."""

    kind: str
    hook: str
    mode: str

    def time(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        """Return ns per packet of any program."""

    def prove(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        """Return ns per packet of the hook's program; WrongPath if they took another path."""


@dataclass(slots=True)
class _Repeated:
    """The same packet again and again; ``counted``: as one of a backend."""

    kind: str
    hook: str
    frame: bytes
    counted: bool = False
    mode: str = DEFAULT

    def time(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        return repeat(program, self.frame, times, testbed.context).nanoseconds

    def prove(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        times += times % 2
        before = testbed.counted()
        run = repeat(program, self.frame, times, testbed.context)
        counted = testbed.counted() - before
        if (run.verdict, run.packet) != (PASS, self.frame):
            raise WrongPath(f"{self.kind}: the packet changed, or was not passed on")
        if counted != (times if self.counted else 0):
            raise WrongPath(f"{self.kind}: {counted} of {times} packets were counted")
        return run.nanoseconds


@dataclass(slots=True)
class _Translated(_Repeated):
    """Packets of a crossing: an odd number of runs makes ``after`` of them."""

    after: bytes = b""

    def prove(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        cost = _Repeated.prove(self, testbed, program, times)
        if repeat(program, self.frame, 1, testbed.context).packet != self.after:
            raise WrongPath(f"{self.kind}: the packet was not translated")
        return cost


@dataclass(slots=True)
class _First:
    """Packets of connections that are new each time."""

    kind: str
    hook: str
    flows: Iterator[Flow]
    mode: str = DEFAULT

    def time(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        frames = [next(self.flows).frame(SYN) for _ in range(max(1, times // _FEWER))]
        return statistics.median(
            repeat(program, frame, 1, testbed.context).nanoseconds for frame in frames
        )

    def prove(self, testbed: CrossingTestbed, program: int, times: int) -> float:
        before = testbed.chosen()
        cost = self.time(testbed, program, times)
        if testbed.chosen() - before != max(1, times // _FEWER):
            raise WrongPath(f"{self.kind}: not every packet opened a connection")
        return cost


@dataclass(slots=True)
class _Course:
    """A path, and what each round measured of it and of the empty program."""

    path: _Path
    values: list[float] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)

    def cells(self) -> Iterator[Cell]:
        for mode, values in (("empty", self.empty), (self.path.mode, self.values)):
            yield Cell("programs", self.path.kind, mode, 0, "ns", tuple(values))


def steps(context: Context) -> Iterator[Step]:
    """Return the one step: a build with the usual capacities. Modes and sizes do not matter."""
    seconds = _LOAD_SECONDS + _ROUND_SECONDS * (context.scale.rounds + 1)
    yield Step("programs", seconds, partial(_measure, context))


def _measure(context: Context, report: Report) -> None:
    root = PinRoot(sandbox.BPF_ROOT / "programs")
    report("compiling")
    root.create()
    make_build(root, load(Sizes()), print)
    pinned = Pinned(root.next)
    try:
        context.results.cells += measure(pinned, report, rounds=context.scale.rounds)
    finally:
        pinned.close()
        root.remove()


def measure(
    pinned: Pinned, report: Report, *, rounds: int = 7, repeats: int = 100_000
) -> list[Cell]:
    """Measure a loaded build, which no other program uses and which is emptied for it.

    Every path gives two cells, of the mode ``empty`` and of ``default`` or ``xdp``. To be called in
    a sandbox.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    with ExitStack() as stack:
        stack.callback(os.sched_setaffinity, 0, allowed)
        empty = {DEFAULT: _empty(SCHED_CLS, -1, stack), EDGE: _empty(XDP, XDP_PASS, stack)}
        testbed = CrossingTestbed(pinned)
        courses = [_Course(path) for path in _paths(testbed)]
        if (pinned.directory / "programs" / EDGE).exists():
            outside = stack.enter_context(uplink(pinned))
            courses += [_Course(path) for path in _forwarded(testbed, outside)]
        for number in range(rounds + 1):
            report(f"round {number} of {rounds}")
            for course in courses:
                path = course.path
                least = path.time(testbed, empty[path.mode], repeats)
                cost = path.prove(testbed, pinned.program(path.hook), repeats)
                # The first round warms up.
                if number:
                    course.empty.append(least)
                    course.values.append(cost)
    return [cell for course in courses for cell in course.cells()]


def _empty(kind: int, verdict: int, stack: ExitStack) -> int:
    """Load a program that returns its verdict at once; ``stack`` closes it."""
    code = Code()
    code.leave(verdict)
    program = load_program("empty", kind, 0, code.finish(), "Apache-2.0")
    stack.callback(os.close, program)
    return program


def _paths(testbed: CrossingTestbed) -> Iterator[_Path]:
    yield _Repeated("not IP, ingress", "ingress", ARP_REQUEST)
    yield _Repeated("not IP, egress", "egress", ARP_REQUEST)
    for ends, protocol in itertools.product((V4, V6), (_TCP, _UDP)):
        front, back = Place(ends.front, _PLAIN_PORT), Place(_PLAIN[ends], _PLAIN_PORT + _BACK)
        testbed.serve(front, back, protocol)
    yield from _untouched()
    for protocol, ends in itertools.product((_TCP, _UDP), (V4, V6)):
        yield from _established(testbed, protocol, ends)
    for protocol, ends in ((_TCP, V4), (_TCP, V6), (_UDP, V4)):
        yield from _masqueraded(testbed, protocol, ends)
    for ends in (V4, V6):
        yield _first(testbed, ends)


def _untouched() -> Iterator[_Path]:
    """Packets to no Service."""
    for ends in (V4, V6):
        away = Place(ends.client, _ELSEWHERE), Place(_PLAIN[ends], _ELSEWHERE)
        for protocol, hook in itertools.product((_TCP, _UDP), ("ingress", "egress")):
            name = f"{_name(protocol, ends)}, {hook}"
            yield _Repeated(f"no Service, {name}", hook, Flow(*away, protocol).frame(ACK))
        name = _name(_TCP, ends)
        unknown = Place(_UNKNOWN[ends], _ELSEWHERE)
        frame = Flow(away[0], unknown, _UDP).frame(ACK)
        yield _Repeated(
            f"no Service, nor a backend, {_name(_UDP, ends)}, ingress", "ingress", frame
        )
        first = Flow(*away, _TCP).frame(SYN)
        yield _Repeated(f"no Service, first packet, {name}, ingress", "ingress", first)
        same_port = Flow(away[0], Place(_PLAIN[ends], _FRONT), _TCP).frame(ACK)
        yield _Repeated(f"no Service, port of one, {name}, ingress", "ingress", same_port)
        own_port = Flow(away[0], Place(_PLAIN[ends], _PLAIN_PORT + _BACK), _TCP).frame(SYN)
        yield _Repeated(f"straight to a backend, first packet, {name}", "ingress", own_port)


def _established(testbed: CrossingTestbed, protocol: int, ends: Ends) -> Iterator[_Path]:
    crossing = _crossing(protocol, ends, _FRONT)
    testbed.cross(crossing)
    there, routed = crossing.to(crossing.front), crossing.to(crossing.back)
    name = _name(protocol, ends)
    yield _path(f"established, {name}, ingress", "ingress", there, routed, counted=True)
    yield _path(f"established, {name}, egress", "egress", routed.reply, there.reply, counted=True)


def _masqueraded(testbed: CrossingTestbed, protocol: int, ends: Ends) -> Iterator[_Path]:
    """Paths of masqueraded packets."""
    leaves_as = Place(ends.node, _LEAVES_AS)
    crossing = _crossing(protocol, ends, _MASQUERADED)._replace(leaves_as=leaves_as)
    testbed.cross(crossing)
    there, routed = crossing.to(crossing.front), crossing.to(crossing.back)
    wire = routed._replace(source=leaves_as)
    name = f"{_name(protocol, ends)}, masqueraded"
    yield _path(f"established, {name}, ingress", "ingress", there, routed, counted=True)
    yield _path(f"established, {name}, egress", "egress", routed, wire)
    yield _path(f"established, {name}, reply, ingress", "ingress", wire.reply, routed.reply)


def _forwarded(testbed: CrossingTestbed, outside: Uplink) -> Iterator[_Path]:
    """What XDP forwards, with connections of its own."""
    for protocol, ends in ((_TCP, V4), (_TCP, V6), (_UDP, V4)):
        crossing = _crossing(protocol, ends, _EDGE)._replace(leaves_as=Place(ends.node, _LEAVES_AS))
        testbed.cross(crossing)
        yield from forwarded(_name(protocol, ends), crossing, outside)


def _first(testbed: CrossingTestbed, ends: Ends) -> _Path:
    front = Place(ends.front, _FIRST)
    testbed.serve(front, Place(ends.back, _FIRST + _BACK), _TCP)
    network = ends.client.removesuffix("7")
    clients = itertools.product(range(100, 200), range(1024, 32768))
    flows = (Flow(Place(f"{network}{host}", port), front, _TCP) for host, port in clients)
    return _First(f"first packet, {_name(_TCP, ends)}, ingress", "ingress", flows)


def _crossing(protocol: int, ends: Ends, port: int) -> Crossing:
    front, back = Place(ends.front, port), Place(ends.back, port + _BACK)
    return Crossing(Place(ends.client, _CLIENT), front, back, protocol)


def _path(kind: str, hook: str, before: Flow, after: Flow, *, counted: bool = False) -> _Path:
    return _Translated(kind, hook, before.frame(), counted, after=after.frame())


def _name(protocol: int, ends: Ends) -> str:
    return f"{_NAMES[protocol]} over {'IPv4' if ends is V4 else 'IPv6'}"
