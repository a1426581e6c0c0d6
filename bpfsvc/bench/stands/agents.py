"""Agents under measurement: started as on a node, timed, weighed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from bpfsvc.bench.clusters.modes import AGENTS
from bpfsvc.bench.processes.children import ROOT
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab import sandbox
from bpfsvc.lab.node import Node
from bpfsvc.lab.topology import CLUSTER_CIDRS, Lab

CACHE = sandbox.ROOT / "cache"
"""Of compiled programs, for all whose start is not what is measured."""

_HEALTHZ = ("127.0.0.1", 10256)
_REQUEST = b"GET /healthz HTTP/1.0\r\n\r\n"
_PATIENCE = 120.0
_POLL = 0.002
_CODE = "from bpfsvc.commands.run import run; run()"


class AgentFailed(BpfsvcError):
    """An agent ended, or was not healthy in time."""


class Memory(NamedTuple):
    """Of one process, in MB (1024 * 1024 bytes): resident, shared pages in part, own pages."""

    rss: float
    pss: float
    private: float


class Agent:
    """One running agent; a context manager that ends it and leaves what it loaded."""

    def __init__(
        self, node: Node, flags: Sequence[str], log: Path, cache: Path | None = None
    ) -> None:
        """``flags``: where it finds its objects, and how it balances.

        ``cache``: of compiled programs; by default beside ``log``.
        """
        self._node = node
        self._log = log
        cidrs = ",".join(str(CLUSTER_CIDRS[family]) for family in node.addresses)
        words = [
            sys.executable,
            "-c",
            _CODE,
            *flags,
            "--cache",
            str(cache or log.with_name("cache")),
            "--pin-root",
            str(node.pin_root),
            "--cgroup-root",
            str(node.cgroup),
            "--hostname-override",
            node.name,
            "--cluster-cidr",
            cidrs,
        ]
        self.started = time.monotonic()
        with log.open("ab") as stream:
            self._process = node.popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                cwd=ROOT,
            )
        self.pid = self._process.pid

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def healthy(self) -> float:
        """Wait until ``/healthz`` answers 200; give the seconds since the start."""
        while not self._answers():
            if self._process.poll() is not None:
                raise AgentFailed(f"the agent of {self._node.name} ended: {self._last_line()}")
            if time.monotonic() - self.started > _PATIENCE:
                raise AgentFailed(
                    f"the agent of {self._node.name} is not healthy after "
                    f"{_PATIENCE:.0f} s: {self._last_line()}"
                )
            time.sleep(_POLL)
        return time.monotonic() - self.started

    def said(self) -> str:
        """Give its log."""
        return self._log.read_text()

    def leave(self, core: int) -> None:
        """Keep all its threads off a core; see ``leave``."""
        leave(self.pid, core)

    def stop(self) -> None:
        """End it in good order."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()

    def memory(self) -> Memory:
        """Weigh it."""
        sizes = _sizes(Path(f"/proc/{self.pid}/smaps_rollup"))
        own = sizes["Private_Clean"] + sizes["Private_Dirty"]
        return Memory(sizes["Rss"] / 1024, sizes["Pss"] / 1024, own / 1024)

    def cpu_seconds(self) -> float:
        """Give the CPU time so far, with that of the compiler; to the hundredth of a second."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        # utime, stime, cutime, cstime of proc_pid_stat(5), counted from behind the name.
        return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    def peak(self) -> float:
        """Give the largest resident size so far, in MB."""
        return _sizes(Path(f"/proc/{self.pid}/status"))["VmHWM"] / 1024

    def _answers(self) -> bool:
        with self._node.socket(socket.AF_INET) as asking:
            asking.settimeout(1)
            try:
                asking.connect(_HEALTHZ)
                asking.sendall(_REQUEST)
                return b" 200 " in asking.recv(64)
            except (ConnectionError, TimeoutError):
                return False

    def _last_line(self) -> str:
        lines = self._log.read_text().strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


class CompilerPeak:
    """Watches for an agent's compiler process, and notes its largest resident size in MB."""

    def __init__(self, agent: Agent) -> None:
        self._children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
        self._done = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Give the peak; 0 if nothing was compiled."""
        self._done.set()
        self._thread.join()
        return self._peak / 1024

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            try:
                for child in self._children.read_text().split():
                    size = _sizes(Path("/proc", child, "status")).get("VmHWM", 0)
                    self._peak = max(self._peak, size)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it ended between two looks


def _sizes(file: Path) -> dict[str, int]:
    """Read ``Name:  123 kB`` lines."""
    found = {}
    for line in file.read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            found[words[0].rstrip(":")] = int(words[1])
    return found


def start_agents(stack: ExitStack, lab: Lab, manifests: Path) -> None:
    """Start an agent of mode ``tc`` on every node of a lab, to be ended with ``stack``.

    All are healthy then.
    """
    flags = ["--manifests", str(manifests), *AGENTS["tc"]]
    agents = [
        stack.enter_context(
            Agent(node, flags, manifests.with_name(f"{manifests.name}-{node.name}.log"))
        )
        for node in lab.nodes
    ]
    for agent in agents:
        agent.healthy()


def leave(process: int, core: int) -> None:
    """Keep all threads of a process off a core, if there is another: what runs there is measured.

    What they start stays off it, too.
    """
    others = os.sched_getaffinity(0) - {core}
    moved: set[int] = set()
    # A thread that has not been moved yet may have started one in the meantime.
    while others and (found := _threads(process) - moved):
        for thread in found:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, others)
        moved |= found


def _threads(process: int) -> set[int]:
    return {int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir()}


def cores() -> tuple[int, int]:
    """Give the core for what must run without interruption, and one for the rest."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[-1], allowed[0]
