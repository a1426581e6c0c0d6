"""A stand: one mode set up in a lab of its own, with clients, and a server behind the Service.

Stands of one size stand side by side and are alike but for what their nodes are programmed with.
Client and server of a stand run on one core: then nothing waits, the core is always busy, and the
rate tells what the whole way costs, to within a percent; on two cores it would mostly tell how long
a virtual machine takes to wake another core.

Pods are below their node's cgroup in all stands, as they are on a real node. Netfilter tracks
connections in all of them, for a rule of a CNI masquerades what leaves the range of pods: on a node
with a kubelet it always does, so only the difference between the modes is theirs. UDP flows are
forgotten after a second in all of them: a question is to be a first packet, and in a minute there
are more questions than source ports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bpfsvc.bench import rivals
from bpfsvc.bench.clusters.modes import AGENTS, DIRECT, KUBE_PROXY, PODS, UPLINK, Cluster
from bpfsvc.bench.clusters.objects import MEASURED, NODE_PORT, PORT
from bpfsvc.bench.clusters.supplies import Server as ApiServer
from bpfsvc.bench.load import BLOCK, BULK, Client, Outcome, Server
from bpfsvc.bench.processes.clocks import cpu_seconds, softirq_thread, thread_seconds
from bpfsvc.bench.rivals import KubeProxy
from bpfsvc.bench.rivals.kubeproxy import Layout
from bpfsvc.bench.stands import offloads
from bpfsvc.bench.stands.agents import CACHE, Agent, cores, leave
from bpfsvc.bench.stands.upkeep import Clocks, Upkeep
from bpfsvc.datapath import bpf
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.node import Node
from bpfsvc.lab.scaffold import Scaffold
from bpfsvc.lab.topology import Lab

BACKEND_PORT = 9000
BACKEND = "10.244.2.11"
"""The pod that serves, in every lab: the first of node 2."""

_MB = 1024 * 1024
_SHORT_LIVED = ("--conntrack-udp-timeout", "1s", "--conntrack-udp-timeout-stream", "1s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What stands are made with.

    ``load``: the load tool. ``limit``: seconds that a rival may take to program a node.
    ``kube_proxy``: its binary, if given, and its ``layout``.
    """

    load: Path
    limit: float
    kube_proxy: Path | None = None
    layout: Layout = "iptables"


class Stand(Scaffold):
    """A ``mode``, set up for a ``cluster``.

    * ``synced``: seconds until each node was programmed; none for ``direct``. For an agent that is
      from its start until it is healthy; a rival's tools have no such start.
    * ``upkeep``: what agents or kube-proxy do for connections, on other cores; None without any.
    """

    def __init__(self, mode: str, cluster: Cluster, means: Means) -> None:
        super().__init__()
        self.mode, self.cluster = mode, cluster
        self.synced: list[float] = []
        self.upkeep: Upkeep | None = None
        self._means = means
        self._agents: list[Agent] = []
        self._clients: dict[Namespace, Client] = {}
        self._core, _ = cores()
        self._softirqs = softirq_thread(self._core)

    def _build(self) -> None:
        self._lab = self._stack.enter_context(
            Lab("routed", families=(4,), pods_per_node=1, holds_pods=True, cni_masquerade=True)
        )
        if self.mode == "xdp":  # which asks for all this when it is attached
            self.set_offloads()
            offloads.take_back(self._lab, self._stack)
        near, far = self._lab.nodes
        (self._pod,), (backend,) = near.pods.values(), far.pods.values()
        self._server = Server(self._means.load, backend, self._core, BACKEND_PORT)
        self._lab.client.route(BACKEND, far)
        self._program()
        self._shorten_flows()

    def run(self, kind: str, where: str, clients: int, seconds: float) -> tuple[Outcome, float]:
        """Put a load on for so long; give what came of it, and the CPU seconds of both ends.

        ``where``: ``pod`` or ``node`` (the client is on node 1, the backend on node 2), ``remote``
        or ``local`` (the client is outside and asks the NodePort of node 1, of node 2). In bulk,
        what the server has read counts.
        """
        place, (address, port) = self._way(where)
        if place not in self._clients:
            self._clients[place] = Client(self._means.load, place, self._core)
        read = self._server.seen().bytes if kind == BULK else 0
        before = self._others()
        outcome = self._clients[place].run(kind, address, port, clients, seconds)
        cpu = outcome.cpu_seconds + self._others() - before
        if kind == BULK:
            read = self._server.seen().bytes - read
            outcome = replace(outcome, operations=read // BLOCK, bytes=read)
        return outcome, cpu

    @property
    def near(self) -> Node:
        """The node of the client's pod, where packets are translated on their way there."""
        return self._lab.nodes[0]

    def set_offloads(self) -> None:
        """Let frames on all cables to the switch be as those of real interfaces."""
        offloads.make_real(self._lab)

    def memory(self) -> dict[str, list[float]]:
        """Give the MB of each node's agent and of its maps, as far as there are any."""
        if not self._agents:
            return {}
        return {
            "agent, RSS": [agent.memory().rss for agent in self._agents],
            "maps": [_map_memory(node.pin_root) for node in self._lab.nodes],
        }

    def _way(self, where: str) -> tuple[Namespace, tuple[str, int]]:
        near, far = self._lab.nodes
        place = {"pod": self._pod, "node": near}.get(where, self._lab.client)
        if self.mode == DIRECT:
            return place, (BACKEND, BACKEND_PORT)
        if place is not self._lab.client:
            return place, (MEASURED, PORT)
        node = near if where == "remote" else far
        return place, (node.address(4), NODE_PORT)

    def _others(self) -> float:
        """Give the CPU seconds of all that works for an outcome on its core, but the client."""
        softirqs = cpu_seconds(self._softirqs) if self._softirqs else 0.0
        return self._server.cpu() + softirqs

    def _program(self) -> None:
        if self.mode in AGENTS:
            self._start_agents()
        elif self.mode == KUBE_PROXY:
            self._start_kube_proxies()
        elif self.mode != DIRECT:
            services = self.cluster.balanced()
            for node in self._lab.nodes:
                self.synced.append(
                    rivals.program(node, self.mode, services, PODS, self._means.limit)
                )

    def _start_agents(self) -> None:
        words = [*AGENTS[self.mode], *_SHORT_LIVED]
        flags = ["--manifests", str(self.cluster.manifests()), *words]
        for node in self._lab.nodes:
            log = self.cluster.directory / f"{self.mode}-{node.name}.log"
            agent = self._stack.enter_context(Agent(node, flags, log, CACHE))
            self._agents.append(agent)
            self.synced.append(agent.healthy())
            agent.leave(self._core)
            if refusal := _refusal(self.mode, node, agent):
                raise BpfsvcError(refusal)
        tables = [node.pin_root / "current/maps/connections" for node in self._lab.nodes]
        self._keep(lambda: _united(thread_seconds(agent.pid) for agent in self._agents), tables)

    def _start_kube_proxies(self) -> None:
        assert self._means.kube_proxy is not None
        lab, directory = self._lab, self.cluster.directory / KUBE_PROXY
        server = ApiServer(directory, lab.client, lab.client.address(4), lab.nodes)
        server.fill(self.cluster.services, BACKEND, BACKEND_PORT)
        made = []
        for node in lab.nodes:
            one = KubeProxy(
                node,
                self._means.kube_proxy,
                server.kubeconfig,
                self._means.layout,
                PODS,
                directory / f"{node.name}.log",
            )
            made.append(self._stack.enter_context(one))
            self.synced.append(one.ready(self._means.limit))
        # The server is not a part of a node, and counted nowhere.
        for process in (*(one.pid for one in made), *(child.pid for child in lab.client.children)):
            leave(process, self._core)
        # Its work goes from thread to thread.
        self._keep(lambda: {one.pid: cpu_seconds(one.pid) for one in made}, [])

    def _keep(self, clocks: Clocks, tables: Sequence[Path]) -> None:
        self.upkeep = Upkeep(clocks, tables)
        self._stack.callback(self.upkeep.close)

    def _shorten_flows(self) -> None:
        """Let UDP flows be forgotten after a second wherever packets pass."""
        lab = self._lab
        for place in (*lab.nodes, *lab.pods, lab.client):
            for kind in ("udp_timeout", "udp_timeout_stream"):
                with suppress(FileNotFoundError):  # who tracks nothing has no such setting
                    place.sysctl(f"net.netfilter.nf_conntrack_{kind}", 1)
        layout = self._means.layout if self.mode == KUBE_PROXY else self.mode
        if layout == "ipvs":  # which remembers UDP flows by itself, for five minutes
            for node in lab.nodes:
                node.run(["ipvsadm", "--set", "0", "0", "1"])


def _united(found: Iterable[Mapping[int, float]]) -> dict[int, float]:
    return {name: used for each in found for name, used in each.items()}


def _refusal(mode: str, node: Node, agent: Agent) -> str:
    """Say why a node does not do what its mode stands for; empty if it does."""
    if mode == "xdp" and not has_xdp(node):
        return f"the agent of {node.name} has attached no XDP program"
    if mode == "fast" and "--fast-path is not used" in agent.said():
        return f"the agent of {node.name} has declined the fast path"
    return ""


def has_xdp(node: Node) -> bool:
    """Whether XDP serves the uplink of a node."""
    (link,) = json.loads(node.run(["ip", "-json", "link", "show", UPLINK]).stdout)
    return "xdp" in link


def _map_memory(pin_root: Path) -> float:
    """Give the MB that the maps in force take, as the kernel reckons them."""
    total = 0
    for pin in (pin_root / "current" / "maps").iterdir():
        descriptor = bpf.get(pin)
        try:
            lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        finally:
            os.close(descriptor)
        fields = dict(line.split(":", 1) for line in lines)
        total += int(fields["memlock"])
    return total / _MB
