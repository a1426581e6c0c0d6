"""Testbeds for traffic: one mode set up in a lab of its own, with clients and a server.

Testbeds of one size exist side by side and differ only in the programs or rules of their nodes.
Client and server run on one core: then nothing waits, the core is always busy, and the rate shows
what the whole path costs, to within a percent. A veth hands packets over on the core that sends
them, so that the nodes' work on packets is done there, too. On two cores the rate would mostly show
how long a virtual machine takes to wake another one, and where the kernel places processes.

In all testbeds pods are below their node's cgroup, as on a real node. Netfilter tracks connections
in all of them, because a rule of a CNI masquerades packets out of the range of pods: on a node with
a kubelet it always does. UDP flows are forgotten after a second in all of them: a question must be
a first packet, and in a minute there are more questions than source ports.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath import syscall
from bpfsvc.datapath.instructions import Code
from bpfsvc.datapath.loader.creation import load_program
from bpfsvc.devtools.bench.baselines import Mode, write_rules
from bpfsvc.devtools.bench.clocks import cpu_seconds, softirq_thread, thread_seconds
from bpfsvc.devtools.bench.cluster import MEASURED, NODE_PORT, PORT, BenchCluster
from bpfsvc.devtools.bench.figures import PodLinks
from bpfsvc.devtools.bench.kube_proxy import RealKubeProxy, legacy_iptables, place_of_rule
from bpfsvc.devtools.bench.load.tool import BLOCK, BULK, Client, Outcome, Server
from bpfsvc.devtools.bench.modes import AGENTS, DIRECT, KUBE_PROXIES, READ, UNSERVED, UPLINK, XDP
from bpfsvc.devtools.bench.supplies import BenchServer
from bpfsvc.devtools.bench.testbeds.agents import (
    CACHE,
    PODS,
    BenchAgent,
    EventReader,
    cores,
    keep_off,
)
from bpfsvc.devtools.bench.testbeds.upkeep import Clocks, Upkeep
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.environment import Environment
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.topology import Lab, LabClient

BACKEND_PORT, OTHER_PORT = 9000, 9001
"""Of the pod that serves; the other port is in no Service."""
BACKEND = "10.244.2.11"
"""The pod that serves, in every lab: the first of node 2."""

_POLICIES = Path(__file__).parents[1] / "rules" / "policies.nft"
_MB = 1024 * 1024
_XDP, _ATTACH_XDP, _XDP_PASS = 6, 37, 2
"""A type of program, a type of attachment and a verdict (``linux/bpf.h``)."""
_SHORT_LIVED = ("--conntrack-udp-timeout", "1s", "--conntrack-udp-timeout-stream", "1s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What testbeds are made with.

    ``load``: the load tool. ``limit``: seconds that a baseline may take to program a node.
    ``kube_proxy``: its binary, if there is one. ``pods``: how nodes reach them. ``pin``: whether
    the load stays on one core. ``policies``: whether the nodes have the rules of a policy engine.
    """

    load: Path
    limit: float
    kube_proxy: Path | None = None
    pods: PodLinks = "routed"
    pin: bool = True
    policies: bool = False


class TrafficTestbed(Environment):
    """A ``mode``, set up for a ``cluster``.

    * ``synced``: seconds until each node was programmed; none for ``direct``. For an agent that is
      from its start until it is healthy; for a baseline its tools alone.
    * ``notes``: remarks for the report.
    * ``upkeep``: the work of agents or kube-proxy for connections, on other cores; None without.
    """

    def __init__(self, mode: str, cluster: BenchCluster, tools: Tools) -> None:
        super().__init__()
        self.mode, self.cluster = mode, cluster
        self.synced: list[float] = []
        self.notes: list[str] = []
        self.upkeep: Upkeep | None = None
        self._tools = tools
        self._agents: list[BenchAgent] = []
        self._clients: dict[Namespace, Client] = {}
        self._core = cores()[0] if tools.pin else -1
        busy = [self._core] if tools.pin else sorted(os.sched_getaffinity(0))
        self._softirqs = [thread for core in busy if (thread := softirq_thread(core))]

    def _build(self) -> None:
        self._lab = self._stack.enter_context(
            Lab(
                self._tools.pods,
                families=(4,),
                pods_per_node=1,
                holds_pods=True,
                cni_masquerade=True,
            )
        )
        if self.mode == XDP:  # the agent checks all this when it attaches XDP
            self.set_offloads()
            self._pass_xdp()
        near, far = self._lab.nodes
        (self._pod,), (backend,) = near.pods.values(), far.pods.values()
        port = OTHER_PORT if self.mode in UNSERVED else BACKEND_PORT
        self._server = Server(self._tools.load, backend, self._core, port)
        self._lab.client.route(BACKEND, far)
        if self._tools.policies:
            for node in self._lab.nodes:
                node.run(["nft", "-f", str(_POLICIES)])
        self._program()
        self._shorten_flows()

    def run(self, kind: str, where: str, clients: int, seconds: float) -> tuple[Outcome, float]:
        """Run a load for so long; return its outcome and the CPU seconds of both ends.

        ``where``: ``pod`` or ``node`` (the client is on node 1, the backend on node 2), ``remote``
        or ``local`` (an external client asks the NodePort of node 1, of node 2). In bulk, what the
        server has read counts.
        """
        client_at, (address, port) = self._path(where)
        if client_at not in self._clients:
            self._clients[client_at] = Client(self._tools.load, client_at, self._core)
        read = self._server.seen().bytes if kind == BULK else 0
        before = self._cpu_of_others()
        outcome = self._clients[client_at].run(kind, address, port, clients, seconds)
        cpu = outcome.cpu_seconds + self._cpu_of_others() - before
        if kind == BULK:
            read = self._server.seen().bytes - read
            outcome = replace(outcome, operations=read // BLOCK, bytes=read)
        return outcome, cpu

    def refusals(self) -> list[str]:
        """Return for each agent that does not use the fast path now, though it may, why."""
        return [
            f"{agent.node.name} does not use the fast path: {agent.refusal}"
            for agent in self._agents
            if agent.refusal
        ]

    @property
    def near(self) -> LabNode:
        """The node of the client's pod, where packets are rewritten on their way there."""
        return self._lab.nodes[0]

    def set_offloads(self) -> None:
        """Make frames on all cables to the switch like frames of real interfaces.

        Between namespaces the kernel hands over frames that no wire could carry: segments of 64
        KiB, and checksums that were never computed. XDP in native mode takes neither, and veth
        hands over frames of XDP only where the other end is ready for them. So senders compute
        checksums and cut segments, as interfaces do, and all ends use GRO: in all modes alike.
        """
        lab = self._lab
        machines: tuple[LabNode | LabClient, ...] = (*lab.nodes, lab.client)
        for machine in machines:
            for feature in ("tx", "tso", "gso"):
                machine.uplink.offload(feature, False)
            machine.uplink.offload("gro", True)
            # The switch names its ports after the machines.
            links.find(lab.switch, machine.name).offload("gro", True)

    def memory(self) -> dict[str, list[float]]:
        """Return the MB of each node's agent and of its maps, as far as there are any."""
        if not self._agents:
            return {}
        return {
            "agent, RSS": [agent.memory().rss for agent in self._agents],
            "maps": [map_memory(node.pin_root) for node in self._lab.nodes],
        }

    def _pass_xdp(self) -> None:
        """Attach a program of two instructions to node 1's port of the switch.

        What XDP sends back by the interface where it came in, veth keeps until the next frame of
        another kind, unless the other end has an XDP program too (``veth_xdp_flush``).
        """
        code = Code()
        code.leave(_XDP_PASS)
        program = load_program("pass", _XDP, 0, code.finish(), "Apache-2.0")
        with self._lab.switch.entered():
            index = self._lab.switch.index(self._lab.nodes[0].name)
            link = syscall.link_create(program, index, _ATTACH_XDP)
        os.close(program)
        self._stack.callback(os.close, link)

    def _path(self, where: str) -> tuple[Namespace, tuple[str, int]]:
        """Return where the client is, and the address and port that it asks."""
        near, far = self._lab.nodes
        client_at = {"pod": self._pod, "node": near}.get(where, self._lab.client)
        if self.mode == DIRECT:
            return client_at, (BACKEND, BACKEND_PORT)
        if self.mode in UNSERVED:
            return client_at, (BACKEND, OTHER_PORT)
        if client_at is not self._lab.client:
            return client_at, (MEASURED, PORT)
        node = near if where == "remote" else far
        return client_at, (node.address(4), NODE_PORT)

    def _cpu_of_others(self) -> float:
        """Return the CPU seconds of all but the client that work for an outcome."""
        return self._server.cpu() + sum(map(cpu_seconds, self._softirqs))

    def _program(self) -> None:
        if self.mode in AGENTS:
            self._start_agents()
        elif self.mode in KUBE_PROXIES:
            self._start_kube_proxies()
        elif self.mode != DIRECT:
            mode, ports = cast(Mode, self.mode), self.cluster.ports
            for node in self._lab.nodes:
                self.synced.append(write_rules(node, mode, ports, PODS, self._tools.limit))

    def _start_agents(self) -> None:
        words = [*AGENTS[self.mode], *_SHORT_LIVED]
        flags = ["--manifests", str(self.cluster.manifests()), *words]
        for node in self._lab.nodes:
            log = self.cluster.directory / f"{self.mode}-{node.name}.log"
            agent = self._stack.enter_context(BenchAgent(node, flags, log, CACHE))
            self._agents.append(agent)
            self.synced.append(agent.healthy())
            keep_off(agent.pid, self._core)
            if self.mode == XDP and not has_xdp(node):
                raise BpfsvcError(f"the agent of {node.name} has attached no XDP program")
        if self.mode in READ:
            for agent in self._agents:
                reader = self._stack.enter_context(EventReader(agent.node))
                keep_off(reader.pid, self._core)
        tables = [node.pin_root / "current/maps/connections" for node in self._lab.nodes]
        self._keep(lambda: _united(thread_seconds(agent.pid) for agent in self._agents), tables)

    def _start_kube_proxies(self) -> None:
        binary = self._tools.kube_proxy
        assert binary is not None
        lab, directory = self._lab, self.cluster.directory / self.mode
        layout = KUBE_PROXIES[self.mode]
        server = BenchServer(directory, lab.client, lab.client.address(4), lab.nodes)
        server.fill(self.cluster.services, BACKEND, BACKEND_PORT)
        tools = None if layout == "nftables" else legacy_iptables(directory / "tools")
        made = []
        for node in lab.nodes:
            log = directory / f"{node.name}.log"
            proxy = RealKubeProxy(node, binary, server.kubeconfig, layout, PODS, log, tools)
            made.append(self._stack.enter_context(proxy))
            # It reads its objects, too, and a baseline's tools do not.
            self.synced.append(proxy.ready(2 * self._tools.limit))
        if layout == "iptables":
            self.notes.append(self._place(tools / "iptables" if tools else Path("iptables")))
        # The server is no part of a node, and its time is counted nowhere.
        for process in (
            *(proxy.pid for proxy in made),
            *(child.pid for child in lab.client.children),
        ):
            keep_off(process, self._core)
        # Its work moves from thread to thread.
        self._keep(lambda: {proxy.pid: cpu_seconds(proxy.pid) for proxy in made}, [])

    def _place(self, iptables: Path) -> str:
        """Return in words how many rules first packets try until they meet the measured Service."""
        words = [str(iptables), "-w", "-t", "nat", "-S", "KUBE-SERVICES"]
        index, count = place_of_rule(self.near.run(words).stdout, MEASURED)
        order = "in kube-proxy's order, which is a new one at each start"
        return f"first packets try rules in turn, the measured is {index:,} of {count:,} {order}"

    def _keep(self, clocks: Clocks, tables: Sequence[Path]) -> None:
        self.upkeep = Upkeep(clocks, tables)
        self._stack.callback(self.upkeep.close)

    def _shorten_flows(self) -> None:
        """Have every node, pod and the client forget UDP flows after a second."""
        lab = self._lab
        for namespace in (*lab.nodes, *lab.pods, lab.client):
            for kind in ("udp_timeout", "udp_timeout_stream"):
                with suppress(FileNotFoundError):  # no such setting where nothing is tracked
                    namespace.sysctl(f"net.netfilter.nf_conntrack_{kind}", 1)
        # ipvs remembers UDP flows by itself, for five minutes.
        if KUBE_PROXIES.get(self.mode, self.mode) == "ipvs":
            for node in lab.nodes:
                node.run(["ipvsadm", "--set", "0", "0", "1"])


def has_xdp(node: LabNode) -> bool:
    """Return True if an XDP program is attached to the uplink of a node."""
    (link,) = json.loads(node.run(["ip", "-json", "link", "show", UPLINK]).stdout)
    return "xdp" in link


def _united(clocks: Iterable[Mapping[int, float]]) -> dict[int, float]:
    return {name: used for clock in clocks for name, used in clock.items()}


def map_memory(pin_root: Path) -> float:
    """Return the MB that the maps in force take, as the kernel counts them."""
    total = 0
    for pin in (pin_root / "current" / "maps").iterdir():
        descriptor = syscall.get(pin)
        try:
            lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        finally:
            os.close(descriptor)
        fields = dict(line.split(":", 1) for line in lines)
        total += int(fields["memlock"])
    return total / _MB
