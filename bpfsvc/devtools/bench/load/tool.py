"""The load tool as Python uses it: built, started at both ends, given its orders.

A C program, compiled where it runs: ready-made tools measure neither short connections that the
client closes, with a latency and CPU time for each, nor datagrams from unconnected sockets, in
slices of a fraction of a second. With sixteen clients at a time, a client in Python would take most
of the time. Kinds of operation, by ``clients`` clients at a time from one thread:

========= ======================================================================================
connect   connect, 64 bytes there and back, close by the client, from source ports in turn
request   64 bytes there and back on a connection that is kept
bulk      blocks of 64 KiB one way, on connections that are kept
datagrams a UDP datagram there and back, from one unconnected socket (``sendto``, ``recvfrom``)
questions the same from a new connected socket each time, as DNS clients do, from ports in turn
========= ======================================================================================

A datagram without an answer within 20 ms is an error and sent again. Connections that are kept are
made, and used once, before the clock starts. Connections of requests also serve the next order of
the same kind to the same server, because ``--fast-path established`` knows a connection only after
some time. In bulk, a connection that has not ended 2 s after the time is over makes the whole run a
failure. Source ports come in turn, ports of TCP from the namespace's ``ip_local_port_range``. No
port comes again too soon; a run may wait for that before it begins. Questions are first packets
where UDP flows are forgotten within ``ports.FORGOTTEN`` seconds. Ports of TCP are in TIME_WAIT for
less than ``ports.REUSED`` where ``net.ipv4.tcp_tw_reuse`` is 1 (as in the lab's namespaces).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.clocks import cpu_seconds
from bpfsvc.devtools.bench.line_process import LineProcess
from bpfsvc.devtools.bench.load.ports import REUSED, SourcePorts, tcp_ports
from bpfsvc.devtools.lab import c_program
from bpfsvc.devtools.lab.namespace import Namespace

BULK = "bulk"
CONNECT, QUESTIONS = "connect", "questions"
FLOWS = (CONNECT, QUESTIONS)
"""Kinds in which every operation is a flow of its own."""
KINDS = (CONNECT, "request", BULK, "datagrams", QUESTIONS)
BLOCK = 64 * 1024
"""Bytes of an operation in bulk."""

_PERCENTILES = (50.0, 90.0, 99.0, 99.9)
_SOURCES = sorted(Path(__file__).parent.glob("*.c"))


class LoadFailed(BpfsvcError):
    """The load could not be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one client did, in one slice of time or in several.

    ``operations``: with an answer; in bulk: whole blocks of 64 KiB; ``seconds``: from the
    start to the end of the last one; ``cpu_seconds``: of the client's process, the kernel's work
    for it included; ``bytes``: payload one way; ``errors``: refused, or without an answer;
    ``histogram``: upper edge of a bucket in microseconds, and operations in it.
    """

    operations: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    bytes: int = 0
    errors: int = 0
    histogram: tuple[tuple[float, int], ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        """Return both together, one after the other."""
        counts = Counter(dict(self.histogram))
        counts.update(dict(other.histogram))
        return Outcome(
            operations=self.operations + other.operations,
            seconds=self.seconds + other.seconds,
            cpu_seconds=self.cpu_seconds + other.cpu_seconds,
            bytes=self.bytes + other.bytes,
            errors=self.errors + other.errors,
            histogram=tuple(sorted(counts.items())),
        )

    def percentiles(self, wanted: Iterable[float] = _PERCENTILES) -> dict[str, float]:
        """Return, by ``"50"`` or ``"99.9"``, the microseconds in which so many percent were done.

        Upper edges of buckets that are 3 % wide. Empty where no operation was timed.
        """
        percentiles: dict[str, float] = {}
        total = sum(count for _, count in self.histogram)
        reached = 0
        left = sorted(wanted, reverse=True)
        for edge, count in self.histogram:
            reached += count
            # Rounded first: 99.9 % of 1000 is not to be 999.0000000000001.
            while left and reached >= math.ceil(round(total * left[-1] / 100, 6)):
                percentiles[f"{left.pop():g}"] = edge
        return percentiles


class Seen(NamedTuple):
    """Counts of a server since its start; ``messages``: on connections."""

    connections: int
    messages: int
    datagrams: int
    bytes: int


def build(directory: Path) -> Path:
    """Compile the program into ``directory`` and return its path.

    ``SystemUnfit`` without a C compiler or its headers.
    """
    return c_program.build(directory / "load", _SOURCES, "the load tool")


class _Process(LineProcess):
    """One running program."""

    def __init__(self, program: Path, namespace: Namespace, *words: str) -> None:
        super().__init__(namespace, f"load {' '.join(words)}", [program, *words])

    def cpu(self) -> float:
        """Return the CPU seconds that the process has used so far; see ``clocks``."""
        return cpu_seconds(self.pid)

    def receive(self) -> Any:
        """Wait for an answer and return it; ``LoadFailed`` if it is an error."""
        answer = super().receive()
        if isinstance(answer, dict) and "error" in answer:
            raise LoadFailed(f"{self._name}: {answer['error']}")
        return answer


class Server(_Process):
    """A server on TCP and UDP of one port, all addresses of both families.

    It answers from the address that routing chooses, so ``place`` should have one of each family.
    It listens when this returns, and ends with the place.
    """

    def __init__(self, program: Path, namespace: Namespace, core: int, port: int) -> None:
        super().__init__(program, namespace, "server", str(core), str(port))
        self.receive()

    def seen(self) -> Seen:
        """Return the counts since the start."""
        return Seen(**self.ask())


class Client(_Process):
    """A client, which does one thing at a time and ends with the place."""

    def __init__(self, program: Path, namespace: Namespace, core: int) -> None:
        super().__init__(program, namespace, "client", str(core))
        self._ports = {
            CONNECT: SourcePorts(
                tcp_ports(namespace.sysctl("net.ipv4.ip_local_port_range")), REUSED
            ),
            QUESTIONS: SourcePorts(),
        }

    def run(self, kind: str, address: str, port: int, clients: int, seconds: float) -> Outcome:
        """Do operations of a kind for so long; ``LoadFailed`` if the first of all is refused.

        The same if a connection in bulk does not end. ``clients``: how many operations run at a
        time, at most 512.
        """
        if kind in self._ports:
            self._ports[kind].wait()
        self.send(kind, address, port, clients, round(seconds * 1000))
        try:
            answer = self.receive()
        except LoadFailed as error:
            raise LoadFailed(f"{error.message} ({kind} to {address} port {port})") from None
        answer["histogram"] = tuple((edge, count) for edge, count in answer["histogram"])
        outcome = Outcome(**answer)
        if kind in self._ports:
            self._ports[kind].note_taken(outcome.operations + outcome.errors)
        if kind == BULK and outcome.errors:
            raise LoadFailed(
                f"{self._name}: {outcome.errors} of {clients} connections had not come to their "
                f"end 2 s after the time was over ({kind} to {address} port {port})"
            )
        return outcome
