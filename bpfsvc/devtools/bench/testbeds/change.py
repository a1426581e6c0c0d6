"""Testbeds in which endpoints change: two backends that each answer with their own number.

Only the node where packets are rewritten has an agent or rules: on a real network the other nodes
are other machines. A client in a pod asks without pause, on the same core as the backends: while a
testbed is open, this process and all it starts keep off that core, if there is another one.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import statistics
import sys
import time
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bpfsvc.devtools.bench.baselines import Baseline
from bpfsvc.devtools.bench.cluster import (
    MEASURED,
    PORT,
    BenchCluster,
    measured_ports,
    measured_slice,
)
from bpfsvc.devtools.bench.datagrams import FirstAnswer
from bpfsvc.devtools.bench.figures import Origin
from bpfsvc.devtools.bench.line_process import ROOT, LineProcess, ProcessFailed, command, udp_server
from bpfsvc.devtools.bench.modes import AGENTS, DEFAULT
from bpfsvc.devtools.bench.supplies import BenchFiles, BenchServer
from bpfsvc.devtools.bench.testbeds.agents import PODS, BenchAgent, cores
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.environment import Environment
from bpfsvc.devtools.lab.topology import Lab

_BACKEND_PORT = 9000
_CHANGE_SECONDS = 50.0  # for a change; less than the patience of the client (datagrams)
_EMPTY_RUNS, _PAUSE = 11, 0.02  # as many, and seconds between two of them
_serial = itertools.count(1)


class ChangeTestbed(Environment):
    """A lab for a cluster of ``services`` Services."""

    def __init__(self, services: int) -> None:
        super().__init__()
        self._services = services
        self._lab = Lab(
            "routed", families=(4,), pods_per_node=2, holds_pods=True, cni_masquerade=True
        )
        self._directory = sandbox.ROOT / f"change-{next(_serial)}"
        self._present = 0

    def _build(self) -> None:
        core, _ = cores()
        self._stack.enter_context(_kept_off(core))
        lab = self._stack.enter_context(self._lab)
        near, far = lab.nodes
        self._backends = [pod.address(4) for pod in far.pods.values()]
        for number, pod in enumerate(far.pods.values()):
            udp_server(pod, _BACKEND_PORT, core, str(number))
        pod = next(iter(near.pods.values()))
        line = command("datagrams", "client", str(core))
        self._client = LineProcess(pod, "the client that asks", line)
        self._directory.mkdir()
        self._stack.callback(shutil.rmtree, self._directory)
        self._fill()
        # The client's source ports come again after some seconds: no flow may be remembered.
        for kind in ("udp_timeout", "udp_timeout_stream"):
            near.sysctl(f"net.netfilter.nf_conntrack_{kind}", 1)

    def change(self) -> tuple[float, FirstAnswer]:
        """Have the other backend serve; return the seconds until packets went there."""
        following = 1 - self._present
        self._prepare(self._backends[following])
        self._client.ask(MEASURED, PORT, str(self._present), str(following))
        changed = self._release()
        answer = self.first_answer()
        self._present = following
        if answer.at < changed:
            raise ProcessFailed("the other backend answered before the change")
        return answer.at - changed, answer

    def timed_changes(self, during: Iterable[None], pauses: tuple[float, float]) -> list[float]:
        """Make changes as long as ``during`` lasts; return the milliseconds of each.

        ``pauses``: seconds between two, at least and at most.
        """
        chance = random.Random(1)
        times = []
        for _ in during:
            time.sleep(chance.uniform(*pauses))
            seconds, _ = self.change()
            times.append(seconds * 1000)
        return times

    def first_answer(self) -> FirstAnswer:
        """Wait for the answer that the client is waiting for."""
        return FirstAnswer(*self._client.receive())

    @abstractmethod
    def _fill(self) -> None:
        """Bring the cluster into the lab."""

    @abstractmethod
    def _prepare(self, backend: str) -> None:
        """Have all ready for a change to a backend."""

    @abstractmethod
    def _release(self) -> float:
        """Make the change; return the moment just before (``CLOCK_MONOTONIC``, seconds)."""


class AgentChangeTestbed(ChangeTestbed):
    """With objects in files or in an API server, and agents as they come that follow them.

    ``cache``: of compiled programs; an empty one if None, so that the first agent compiles.
    """

    def __init__(self, services: int, origin: Origin, cache: Path | None = None) -> None:
        super().__init__(services)
        self._origin, self._cache = origin, cache

    def _fill(self) -> None:
        lab = self._lab
        self.supply: BenchFiles | BenchServer
        if self._origin == "API":
            self.supply = BenchServer(self._directory, lab.client, lab.client.address(4), lab.nodes)
        else:
            self.supply = BenchFiles(self._directory, self._origin)
        self.supply.fill(self._services, self._backends[0], _BACKEND_PORT)

    def agent(self, programs: Path | None = None) -> BenchAgent:
        """Start the agent of the node on which the client's pod is.

        ``programs``: compiled ones that came with an image.
        """
        flags = [*self.supply.flags(), *AGENTS[DEFAULT]]
        log = self._directory / "agent.log"
        return BenchAgent(self._lab.nodes[0], flags, log, self._cache, programs)

    def boot(self) -> None:
        """Empty the node's kernel, as a boot does; files stay."""
        node = self._lab.nodes[0]
        words = [sys.executable, "-m", "bpfsvc", "cleanup", "--pin-root", str(node.pin_root)]
        node.run(words, cwd=ROOT)

    def watch_first(self) -> None:
        """Have the client ask from now on, though there may be no answer yet."""
        self._client.ask(MEASURED, PORT, "", str(self._present))

    def _prepare(self, backend: str) -> None:
        self.supply.prepare(measured_slice(backend, _BACKEND_PORT))

    def _release(self) -> float:
        return self.supply.release()


class BaselineChangeTestbed(ChangeTestbed):
    """With rules of a baseline on the one node, which must be written within ``limit`` seconds.

    What is measured is the tool that replaces them and nothing else: kube-proxy's own times are
    longer by what it computes and waits. ``empty``: the seconds that the tool takes with nothing to
    do: the median of some runs, known after the first change.
    """

    def __init__(self, services: int, mode: str, limit: float) -> None:
        super().__init__(services)
        self._mode, self._limit = mode, limit
        self.empty = 0.0

    def _fill(self) -> None:
        cluster = BenchCluster(self._services, self._directory, self._backends[0], _BACKEND_PORT)
        # A change has less time than the first writing: the client gives up waiting.
        self._baseline = Baseline(
            self._lab.nodes[0],
            self._mode,
            cluster.ports,
            PODS,
            self._limit,
            change_limit=min(self._limit, _CHANGE_SECONDS),
        )
        self._stack.callback(self._baseline.close)

    def _prepare(self, backend: str) -> None:
        # The client asks by UDP, and two runs of a tool would be one too many.
        _, udp = measured_ports(backend, _BACKEND_PORT)
        self._baseline.prepare(udp)

    def _release(self) -> float:
        if not self.empty:
            # Measured now, while the client asks, as it does at every change.
            self.empty = statistics.median(self._empty_runs())
        return self._baseline.change().began

    def _empty_runs(self) -> Iterator[float]:
        for _ in range(_EMPTY_RUNS):
            time.sleep(_PAUSE)
            yield self._baseline.start_tool().seconds


@contextmanager
def _kept_off(core: int) -> Iterator[None]:
    """Keep this thread, and what it starts, off a core, if there is another one."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed - {core} or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
