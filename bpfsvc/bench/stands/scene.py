"""The scene of the suites that change endpoints: two backends that say who they are.

Only the node where packets are translated is programmed: on a real network the other nodes are
other machines. A client in a pod asks without pause, on a core of its own with the backends: while
a scene is open, this process and all it starts keep off that core, if there is another one.

``AgentScene`` has an agent that follows a supply of objects. ``RivalScene`` has rules as kube-proxy
writes them, and what it measures is the tool that replaces them and nothing else: the times of
kube-proxy itself are longer by what it thinks and waits.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import statistics
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpfsvc.bench import rivals
from bpfsvc.bench.clusters.modes import AGENTS, PODS, balanced, measured_balanced
from bpfsvc.bench.clusters.objects import MEASURED, PORT, measured_slice
from bpfsvc.bench.clusters.supplies import Files, Server
from bpfsvc.bench.figures import Origin
from bpfsvc.bench.processes.children import ROOT, ProcessFailed, Talker, command, server
from bpfsvc.bench.processes.datagrams import Heard
from bpfsvc.bench.stands.agents import Agent, cores
from bpfsvc.lab import sandbox
from bpfsvc.lab.scaffold import Scaffold
from bpfsvc.lab.topology import Lab

_BACKEND_PORT = 9000
_ASKED_SECONDS = 50.0  # for a change, less than the patience of the client that asks (datagrams)
_EMPTY_RUNS, _APART = 11, 0.02  # as many, and seconds between two of them
_serial = itertools.count(1)


class Scene(Scaffold):
    """A lab for a cluster of ``services`` Services."""

    def __init__(self, services: int) -> None:
        super().__init__()
        self._services = services
        self._lab = Lab(
            "routed", families=(4,), pods_per_node=2, holds_pods=True, cni_masquerade=True
        )
        self._directory = sandbox.ROOT / f"scene-{next(_serial)}"
        self._present = 0

    def _build(self) -> None:
        core, _ = cores()
        self._stack.enter_context(_kept_off(core))
        lab = self._stack.enter_context(self._lab)
        near, far = lab.nodes
        self._backends = [pod.address(4) for pod in far.pods.values()]
        for number, pod in enumerate(far.pods.values()):
            words = ("datagrams", "server", core, str(number))
            server(pod, socket.SOCK_DGRAM, _BACKEND_PORT, *words)
        pod = next(iter(near.pods.values()))
        line = command("datagrams", "client", str(core))
        self._client = Talker(pod, "the client that asks", line)
        self._directory.mkdir()
        self._stack.callback(shutil.rmtree, self._directory)
        self._furnish()
        # The client's source ports come again after some seconds: no flow may be remembered.
        for kind in ("udp_timeout", "udp_timeout_stream"):
            near.sysctl(f"net.netfilter.nf_conntrack_{kind}", 1)

    def change(self) -> tuple[float, Heard]:
        """Let the other backend serve; give the seconds until packets went there."""
        following = 1 - self._present
        self._prepare(self._backends[following])
        self._client.ask(MEASURED, PORT, str(self._present), str(following))
        changed = self._release()
        heard = self.heard()
        self._present = following
        if heard.at < changed:
            raise ProcessFailed("the other backend answered before the change")
        return heard.at - changed, heard

    def heard(self) -> Heard:
        """Wait for the answer that the client is waiting for."""
        return Heard(*self._client.hear())

    @abstractmethod
    def _furnish(self) -> None:
        """Bring the cluster into the lab."""

    @abstractmethod
    def _prepare(self, backend: str) -> None:
        """Have all ready for a change to a backend."""

    @abstractmethod
    def _release(self) -> float:
        """Make the change, and give the moment just before (``CLOCK_MONOTONIC``, seconds)."""


class AgentScene(Scene):
    """With objects in files or in an API server, and agents of mode ``tc`` that follow them.

    ``cache``: of compiled programs; an empty one if None, so that the first agent compiles.
    """

    def __init__(self, services: int, origin: Origin, cache: Path | None = None) -> None:
        super().__init__(services)
        self._origin, self._cache = origin, cache

    def _furnish(self) -> None:
        lab = self._lab
        if self._origin == "API":
            address = str(lab.client.addresses[4])
            self.supply: Files | Server = Server(self._directory, lab.client, address, lab.nodes)
        else:
            self.supply = Files(self._directory, self._origin)
        self.supply.fill(self._services, self._backends[0], _BACKEND_PORT)

    def agent(self) -> Agent:
        """Start the agent of the node on which the client's pod is."""
        flags = [*self.supply.flags(), *AGENTS["tc"]]
        return Agent(self._lab.nodes[0], flags, self._directory / "agent.log", self._cache)

    def boot(self) -> None:
        """Empty the node's kernel, as a boot does; files stay."""
        node = self._lab.nodes[0]
        words = [sys.executable, "-m", "bpfsvc", "cleanup", "--pin-root", str(node.pin_root)]
        node.run(words, cwd=ROOT)

    def watch_first(self) -> None:
        """Let the client ask from now on, though nobody may answer yet."""
        self._client.ask(MEASURED, PORT, "", str(self._present))

    def _prepare(self, backend: str) -> None:
        self.supply.prepare(measured_slice(backend, _BACKEND_PORT))

    def _release(self) -> float:
        return self.supply.release()


class RivalScene(Scene):
    """With rules of a rival on the one node, which are to be there within ``limit`` seconds.

    ``empty``: the seconds that the tool of a change takes if there is nothing for it to do, which
    is its start: the median of some runs, known after the first change.
    """

    def __init__(self, services: int, mode: str, limit: float) -> None:
        super().__init__(services)
        self._mode, self._limit = mode, limit
        self.empty = 0.0

    def _furnish(self) -> None:
        services = balanced(self._services, self._backends[0], _BACKEND_PORT)
        rivals.program(self._lab.nodes[0], self._mode, services, PODS, self._limit)

    def _prepare(self, backend: str) -> None:
        # The client asks by UDP, and two runs of a tool would be one too many.
        _, following = measured_balanced(backend, _BACKEND_PORT)
        limit = min(self._limit, _ASKED_SECONDS)
        self._ready = rivals.prepare(self._lab.nodes[0], self._mode, following, limit)

    def _release(self) -> float:
        if not self.empty:
            # Now, for the client asks meanwhile as it does at every change.
            self.empty = statistics.median(self._empty_runs())
        return self._ready.make().began

    def _empty_runs(self) -> Iterator[float]:
        for _ in range(_EMPTY_RUNS):
            time.sleep(_APART)
            yield self._ready.empty().seconds


@contextmanager
def _kept_off(core: int) -> Iterator[None]:
    """Keep this thread, and what it starts, off a core, if there is another one."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed - {core} or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
