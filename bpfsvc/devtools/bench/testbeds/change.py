"""A testbed in which endpoints change: two backends that each answer with their own number.

Only the node of the client has an agent or a kube-proxy: on a real network the other nodes are
other machines. The client, in a pod, asks without pause, on the same core as the backends. While a
testbed is open, this process and the processes that it starts keep off that core, if there is
another core.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bpfsvc.devtools.bench.cluster import MEASURED, PORT, measured_slice
from bpfsvc.devtools.bench.figures import Origin
from bpfsvc.devtools.bench.kube_proxy import RealKubeProxy, legacy_iptables
from bpfsvc.devtools.bench.line_process import ROOT, LineProcess, ProcessFailed, udp_server
from bpfsvc.devtools.bench.modes import Layout
from bpfsvc.devtools.bench.supplies import BenchFiles, BenchServer
from bpfsvc.devtools.bench.testbeds.agents import PODS, BenchAgent, cores
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.environment import Environment
from bpfsvc.devtools.lab.namespace import script
from bpfsvc.devtools.lab.topology import Lab

_BACKEND_PORT = 9000
_PATIENCE = 180.0
"""Seconds for an answer of the client; kube-proxy on a busy machine may need a minute."""
_serial = itertools.count(1)


class ChangeTestbed(Environment):
    """A lab for a cluster of ``services`` Services, with objects in files or in an API server.

    ``cache``: of compiled programs; an empty one if None, so that the first agent compiles.
    """

    def __init__(self, services: int, origin: Origin, cache: Path | None = None) -> None:
        super().__init__()
        self._services, self._origin, self._cache = services, origin, cache
        self._lab = Lab(
            "routed", families=(4,), pods_per_node=2, holds_pods=True, cni_masquerade=True
        )
        self._directory = sandbox.ROOT / f"change-{next(_serial)}"
        self._present = 0

    def _build(self) -> None:
        core, _ = cores()
        self._stack.enter_context(_kept_off(core))
        lab = self._stack.enter_context(self._lab)
        self._node, far = lab.nodes
        self._backends = [pod.address(4) for pod in far.pods.values()]
        for number, pod in enumerate(far.pods.values()):
            udp_server(pod, _BACKEND_PORT, core, str(number))
        pod = next(iter(self._node.pods.values()))
        line = script("bench.datagrams", "client", str(core))
        self._client = LineProcess(pod, "the client that asks", line)
        self._client.patience = _PATIENCE
        self._directory.mkdir()
        self._stack.callback(shutil.rmtree, self._directory)
        self._supply: BenchFiles | BenchServer
        if self._origin == "API":
            address = lab.client.address(4)
            self._supply = BenchServer(self._directory, lab.client, address, lab.nodes)
        else:
            self._supply = BenchFiles(self._directory, self._origin)
        self._supply.fill(self._services, self._backends[0], _BACKEND_PORT)
        # The client's source ports come again after some seconds: no flow may be remembered.
        for kind in ("udp_timeout", "udp_timeout_stream"):
            self._node.sysctl(f"net.netfilter.nf_conntrack_{kind}", 1)

    def agent(self, programs: Path | None = None) -> BenchAgent:
        """Start an agent, as it comes, on the node of the client's pod.

        ``programs``: compiled programs that came with an image.
        """
        log = self._directory / "agent.log"
        return BenchAgent(self._node, self._supply.flags(), log, self._cache, programs)

    def kube_proxy(self, binary: Path, layout: Layout) -> RealKubeProxy:
        """Start the real kube-proxy on the node of the client's pod; the origin must be API."""
        assert isinstance(self._supply, BenchServer)
        tools = None if layout == "nftables" else legacy_iptables(self._directory / "tools")
        server, log = self._supply.kubeconfig, self._directory / "kube-proxy.log"
        return RealKubeProxy(self._node, binary, server, layout, PODS, log, tools)

    def boot(self) -> None:
        """Empty the node's kernel, as a boot does; files stay."""
        pins = str(self._node.pin_root)
        self._node.run([sys.executable, "-m", "bpfsvc", "cleanup", "--pin-root", pins], cwd=ROOT)

    def watch_first(self) -> None:
        """Have the client ask from now on, though there may be no answer yet."""
        self._client.ask(MEASURED, PORT, "", str(self._present))

    def first_answer(self) -> float:
        """Return the moment of the answer that the client waits for (``CLOCK_MONOTONIC``)."""
        answer = self._client.receive()
        if answer is None:
            raise ProcessFailed("packets have not come to the backend in time")
        return float(answer)

    def change(self) -> float:
        """Have the other backend serve; return the seconds from the change to its first answer."""
        following = 1 - self._present
        self._supply.prepare(measured_slice(self._backends[following], _BACKEND_PORT))
        self._client.ask(MEASURED, PORT, str(self._present), str(following))
        changed = self._supply.release()
        answer = self.first_answer()
        self._present = following
        if answer < changed:
            raise ProcessFailed("the other backend answered before the change")
        return answer - changed

    def timed_changes(self, during: Iterable[None], pauses: tuple[float, float]) -> list[float]:
        """Make changes as long as ``during`` lasts; return the milliseconds of each change.

        ``pauses``: seconds between two changes, at least and at most.
        """
        chance = random.Random(1)
        times = []
        for _ in during:
            time.sleep(chance.uniform(*pauses))
            times.append(self.change() * 1000)
        return times


@contextmanager
def _kept_off(core: int) -> Iterator[None]:
    """Keep this thread and its child processes off a core, if there is another core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, allowed - {core} or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
