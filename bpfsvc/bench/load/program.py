"""The C program as Python sees it: built, started at both ends, told what to do.

Kinds of operation, each by ``clients`` at a time from one thread:

========= ======================================================================================
connect   connect, 64 bytes there and back, close by the client, from source ports in turn
request   64 bytes there and back on a connection that is kept
bulk      blocks of 64 KiB one way, on connections that are kept
datagrams a UDP datagram there and back, from one unconnected socket (``sendto``, ``recvfrom``)
questions the same from a new connected socket each time, as DNS clients do, from ports in turn
========= ======================================================================================

A datagram without an answer within 20 ms is an error and sent again. Connections that are kept are
made, and used once, before the clock starts; in bulk, one that has not come to its end 2 s after
the time is over makes the whole run a failure. Source ports in turn are used again after 60,000
operations, which takes ``net.ipv4.tcp_tw_reuse`` = 1 (the lab's namespaces have that) and, of
questions, not before ``ports.FORGOTTEN`` seconds: that each is a first packet to all on its way
holds where UDP flows are forgotten so soon.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.bench.load.outcome import Outcome
from bpfsvc.bench.load.ports import Ports
from bpfsvc.bench.processes.children import Talker
from bpfsvc.bench.processes.clocks import cpu_seconds
from bpfsvc.errors import BpfsvcError, SystemUnfit
from bpfsvc.lab.namespace import Namespace

BULK = "bulk"
QUESTIONS = "questions"
FLOWS = ("connect", QUESTIONS)
"""Kinds of which each operation is a flow of its own."""
KINDS = ("connect", "request", BULK, "datagrams", QUESTIONS)
BLOCK = 64 * 1024
"""Bytes of an operation in bulk."""

_SOURCES = sorted(Path(__file__).parent.glob("*.c"))
_CC = ("cc", "-O2", "-Wall", "-Wextra", "-Werror")
_INSTALL = "apt-get install gcc libc6-dev"


class LoadFailed(BpfsvcError):
    """The load could not be put on, or not on what was asked for."""


def build(directory: Path) -> Path:
    """Compile the program into ``directory`` and give its path.

    ``SystemUnfit`` without a C compiler or its headers.
    """
    if shutil.which(_CC[0]) is None:
        raise SystemUnfit("there is no C compiler (cc) to build the load tool with", _INSTALL)
    program = directory / "load"
    done = subprocess.run(
        [*_CC, "-o", program, *_SOURCES], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no reason")
        raise SystemUnfit(f"cc cannot build the load tool: {first.strip()}", _INSTALL)
    return program


class Seen(NamedTuple):
    """What a server has seen since its start; ``messages`` are those on connections."""

    connections: int
    messages: int
    datagrams: int
    bytes: int


class _Process(Talker):
    """One running program."""

    def __init__(self, program: Path, place: Namespace, *words: str) -> None:
        super().__init__(place, f"load {' '.join(words)}", [program, *words])

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def cpu(self) -> float:
        """Give the CPU seconds that the process has used so far; see ``processes.clocks``."""
        return cpu_seconds(self.pid)

    def hear(self) -> Any:
        """Wait for an answer; ``LoadFailed`` if it says that something went wrong."""
        told = super().hear()
        if isinstance(told, dict) and "error" in told:
            raise LoadFailed(f"{self._name}: {told['error']}")
        return told


class Server(_Process):
    """A server on TCP and UDP of one port, all addresses of both families.

    It answers from the address that routing chooses, so ``place`` should have one of each family.
    It listens when this returns, and ends with the place.
    """

    def __init__(self, program: Path, place: Namespace, core: int, port: int) -> None:
        super().__init__(program, place, "server", str(core), str(port))
        self.hear()

    def seen(self) -> Seen:
        """Ask what it has seen since its start."""
        return Seen(**self.ask())


class Client(_Process):
    """A client, which does one thing at a time and ends with the place."""

    def __init__(self, program: Path, place: Namespace, core: int) -> None:
        super().__init__(program, place, "client", str(core))
        self._ports = Ports()

    def run(self, kind: str, address: str, port: int, clients: int, seconds: float) -> Outcome:
        """Do operations of a kind for so long; ``LoadFailed`` if the first of all is refused.

        The same if a connection in bulk does not come to its end. ``clients``: how many are under
        way at a time, at most 512.
        """
        if kind == QUESTIONS:
            self._ports.wait()
        self.tell(kind, address, port, clients, round(seconds * 1000))
        try:
            told = self.hear()
        except LoadFailed as error:
            raise LoadFailed(f"{error.message} ({kind} to {address} port {port})") from None
        told["histogram"] = tuple((edge, count) for edge, count in told["histogram"])
        outcome = Outcome(**told)
        if kind in FLOWS:
            self._ports.take(outcome.operations + outcome.errors)
        if kind == BULK and outcome.errors:
            raise LoadFailed(
                f"{self._name}: {outcome.errors} of {clients} connections had not come to their "
                f"end 2 s after the time was over ({kind} to {address} port {port})"
            )
        return outcome
