"""Agents under measurement: started as on a node, with their times, memory and CPU time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.devtools.bench.line_process import ROOT
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.cluster import LabAgent
from bpfsvc.devtools.lab.namespace import LabError
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.topology import CLUSTER_CIDRS

PODS = IPv4Network(CLUSTER_CIDRS[4])
"""The range of all pods."""

CACHE = sandbox.COMPILED
"""Compiled programs, for all suites but the suite of starts."""

_PATIENCE = 120.0
_PAUSE = 0.002  # seconds between two looks at the log of an agent whose start is measured
_READY = "ready: "  # how the agent's line about the end of its start begins
_LEVEL = " the fast path is "  # in each line about it
_REFUSAL = re.compile(r"(?:not used|used in the middle of connections only): (.*)")
_CODE = "from bpfsvc.cli.run import run; run()"


class AgentFailed(BpfsvcError):
    """An agent ended, or was not healthy in time."""


class Memory(NamedTuple):
    """Of one process, in MB (1024 * 1024 bytes): resident, proportional and private size."""

    rss: float
    pss: float
    private: float


class BenchAgent(LabAgent):
    """One running agent; a context manager that ends it; maps and programs stay.

    ``flags``: where it finds its objects, and its mode. ``cache``: of compiled programs; by default
    beside ``log``. ``programs``: a directory of programs that came with an image, in place of the
    cache.
    """

    def __init__(
        self,
        node: LabNode,
        flags: Sequence[str],
        log: Path,
        cache: Path | None = None,
        programs: Path | None = None,
    ) -> None:
        cidrs = ",".join(str(CLUSTER_CIDRS[family]) for family in node.addresses)
        own = {
            "--cache": "none" if programs else cache or log.with_name("cache"),
            "--programs": programs or "none",
            "--history": log.with_suffix(".history"),
            "--pin-root": node.pin_root,
            "--cgroup-root": node.cgroup,
            "--hostname-override": node.name,
            "--cluster-cidr": cidrs,
        }
        words = [str(word) for pair in own.items() for word in pair]
        self.started = time.monotonic()
        command = [sys.executable, "-c", _CODE, *flags, *words]
        super().__init__(node, command, log, stdin=subprocess.DEVNULL, cwd=ROOT)
        self.pid = self.process.pid

    def __enter__(self) -> BenchAgent:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()

    def healthy(self) -> float:
        """Wait until ``/healthz`` answers 200; return the seconds since the start.

        It is not asked before the log says that the agent is ready: with hundreds of requests, the
        agent would be busy with answers while it starts.
        """
        try:
            about = f"the agent of {self.node.name} is ready"
            wait(self._is_ready_or_over, about, _PATIENCE, longest_pause=_PAUSE)
            self.ready(_PATIENCE)
        except (LabError, TimeoutError) as error:
            lines = self.log.strip().splitlines()
            last = lines[-1] if lines else "it printed nothing"
            what = "ended" if isinstance(error, LabError) else "is not healthy in time"
            raise AgentFailed(f"the agent of {self.node.name} {what}: {last}") from error
        return time.monotonic() - self.started

    def _is_ready_or_over(self) -> bool:
        return _READY in self.log or self.process.poll() is not None

    @property
    def refusal(self) -> str:
        """Why it does not use the fast path now though it may; empty if it does, or must not."""
        return last_refusal(self.log)

    def memory(self) -> Memory:
        """Return its memory now."""
        sizes = _sizes(Path(f"/proc/{self.pid}/smaps_rollup"))
        own = sizes["Private_Clean"] + sizes["Private_Dirty"]
        return Memory(sizes["Rss"] / 1024, sizes["Pss"] / 1024, own / 1024)

    def peak(self) -> float:
        """Return its largest resident size so far, in MB."""
        return _sizes(Path(f"/proc/{self.pid}/status"))["VmHWM"] / 1024

    def cpu_seconds(self) -> float:
        """Return the CPU time so far, the compiler's included; to a hundredth of a second."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        # utime, stime, cutime, cstime of proc_pid_stat(5), counted from behind the name.
        return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


class EventReader:
    """``bpfsvc observe`` on a node, which shows all events; a context manager that ends it.

    Entering waits until the programs are asked for events of connections.
    """

    def __init__(self, node: LabNode) -> None:
        self._pin_root = node.pin_root
        words = ("-m", "bpfsvc", "observe", "--pin-root", str(node.pin_root))
        self._process = node.popen(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        self.pid = self._process.pid

    def __enter__(self) -> EventReader:
        wait(self._is_told_or_over, "the agent asks for events", _PATIENCE)
        self._check()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._check()
        finally:
            if self._process.poll() is None:
                self._process.terminate()
            self._process.wait()
            if self._process.stderr:
                self._process.stderr.close()

    def _is_told_or_over(self) -> bool:
        if self._process.poll() is not None:
            return True
        with closing(Pinned(self._pin_root / "current")) as pinned:
            record = pinned.layout.maps["observed"].value
            made = 1 << pinned.layout.constant("EVENT_MADE")
            raw = pinned.map("observed").lookup(bytes(4)) or bytes(record.size)
            return bool(int(record.unpack(raw)["kinds"]) & made)

    def _check(self) -> None:
        """Raise :class:`AgentFailed` if the reader has ended: its mode would show nothing."""
        if self._process.poll() is not None:
            said = self._process.stderr.read().decode().strip() if self._process.stderr else ""
            raise AgentFailed(f"bpfsvc observe ended: {said or 'it printed nothing'}")


def last_refusal(log: str) -> str:
    """Return why an agent does not use the fast path, or not wholly, at the end of its log."""
    _, _, last = log.rpartition(_LEVEL)
    refusal = _REFUSAL.match(last)
    return refusal[1] if refusal else ""


class CompilerPeak:
    """Watches for an agent's compiler process, and notes its largest resident size in MB."""

    def __init__(self, agent: BenchAgent) -> None:
        # A child belongs to the thread that started it, and the programs are built by a thread.
        self._tasks = Path(f"/proc/{agent.pid}/task")
        self._done = threading.Event()
        self._peak = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        """Return the peak; 0 if nothing was compiled."""
        self._done.set()
        self._thread.join()
        return self._peak / 1024

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            with suppress(FileNotFoundError, ProcessLookupError):  # a process that ended meanwhile
                for children in self._tasks.glob("*/children"):
                    for child in children.read_text().split():
                        size = _sizes(Path("/proc", child, "status")).get("VmHWM", 0)
                        self._peak = max(self._peak, size)


def keep_off(process: int, core: int) -> None:
    """Keep all threads of a process off a core, if there is another: it is for the measurement.

    Threads and processes that it starts later stay off it too.
    """
    others = os.sched_getaffinity(0) - {core}
    moved: set[int] = set()
    # A thread that has not been moved yet may have started one in the meantime.
    while others and (threads := _threads(process) - moved):
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, others)
        moved |= threads


def cores() -> tuple[int, int]:
    """Return the core for clients and servers, and a core for the rest."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[-1], allowed[0]


def _threads(process: int) -> set[int]:
    return {int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir()}


def _sizes(file: Path) -> dict[str, int]:
    """Read lines such as ``Name:  123 kB``."""
    sizes = {}
    for line in file.read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            sizes[words[0].rstrip(":")] = int(words[1])
    return sizes
