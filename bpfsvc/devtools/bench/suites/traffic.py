"""The suites ``pods`` and ``edge``: the cost of traffic in each mode.

``pods``: a client in a pod of node 1 (``where`` = pod), or on node 1 itself (node), asks a cluster
IP; the backend is a pod of node 2. ``edge``: an external client asks a NodePort, of node 1
(remote: the backend is on the other node) or of node 2 (local). In mode ``direct`` the same client
asks the backend itself, without the detour by node 1 of ``remote``.

No socket hook sees an external client, so modes that differ in sockets alone are the same there.
Packets of pods do not pass XDP on an uplink. Processes of a node need sockets to be served. Modes
are left out where they show nothing. ``edge`` shows that ``xdp`` works, and not how fast it is:
veth copies packets of sockets before XDP sees them, and no real interface does so. Where the real
kube-proxy is measured, its recorded rules are not, unless modes are named.

The testbeds also give figures that cost nothing more: the time until a testbed was programmed
(suite ``start``), and the memory of agents and maps (``memory``).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.cluster import BenchCluster
from bpfsvc.devtools.bench.figures import Scale, services_text
from bpfsvc.devtools.bench.modes import (
    AGENTS,
    DIRECT,
    ESTABLISHED,
    KUBE_PROXIES,
    OBSERVED_TC,
    RECORDED,
    STACK_TC,
    TC,
    UNSERVED,
    XDP,
)
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, Step
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.suites.turns import Task, measure
from bpfsvc.devtools.bench.testbeds.traffic import BACKEND, BACKEND_PORT, Tools, TrafficTestbed
from bpfsvc.devtools.lab import sandbox

SUITES = ("pods", "edge")

KINDS = {
    "pods": ("connect", "request", "bulk", "datagrams", "questions"),
    "edge": ("connect", "request", "datagrams"),
}
_PACKETS_ALONE = frozenset({TC, STACK_TC, OBSERVED_TC})
_PODS_ALONE = _PACKETS_ALONE | UNSERVED | {ESTABLISHED}
_LEFT_OUT = {"pods": frozenset({XDP}), "edge": _PODS_ALONE}
"""By suite, the modes that show nothing there."""
_NOT_ON_NODES = _PODS_ALONE
"""Modes that show nothing where a process of the node itself asks."""


def tasks(suite: str, scale: Scale) -> list[Task]:
    """Return the tasks of a suite."""
    kinds = [kind for kind in KINDS[suite] if not scale.kinds or kind in scale.kinds]
    if suite == "pods":
        paths = [(kind, "pod") for kind in kinds]
        paths += [("connect", "node")] if "connect" in kinds else []
    else:
        paths = [(kind, where) for where in ("remote", "local") for kind in kinds]
    return [Task(suite, kind, where, number) for kind, where in paths for number in scale.clients]


def takes_part(mode: str, suite: str, where: str = "") -> bool:
    """Return True if a mode is measured in a suite, from one place or from any."""
    return mode not in _LEFT_OUT[suite] and not (where == "node" and mode in _NOT_ON_NODES)


@dataclass(frozen=True, slots=True)
class _Size:
    """The testbeds for one size of cluster; ``stack`` takes them down."""

    context: Context
    services: int
    tools: Tools
    stack: ExitStack
    testbeds: list[TrafficTestbed] = field(default_factory=list)

    def steps(self, modes: Sequence[str], suites: Sequence[str]) -> Iterator[Step]:
        """Return the steps: set all testbeds up, measure, and take them down."""
        name, scale = services_text(self.services), self.context.scale
        directory = sandbox.ROOT / f"cluster-{self.services}"
        cluster = BenchCluster(self.services, directory, BACKEND, BACKEND_PORT)
        for mode in modes:
            seconds = setup_seconds(mode, self.services, self.tools.limit)
            yield Step(f"{name}: setting {mode} up", seconds, partial(self._set_up, mode, cluster))
        for suite in suites:
            if suite == "edge":
                yield Step("edge: offloads", 1.0, self._set_offloads, always=True)
            for task in tasks(suite, scale):
                count = sum(takes_part(mode, suite, task.where) for mode in modes)
                act = partial(self._measure, task)
                yield Step(f"{name}, {task}", task.seconds(count, scale), act)
        seconds = 1.0 + 3e-4 * self.services
        yield Step(f"{name}: weighing and taking down", seconds, self._end, always=True)

    def _set_up(self, mode: str, cluster: BenchCluster, _report: Report) -> None:
        with self.context.slow.watch(mode, self.services):
            if not cluster.directory.exists():
                cluster.directory.mkdir()
                self.stack.callback(shutil.rmtree, cluster.directory)
            testbed = TrafficTestbed(mode, cluster, self.tools)
            self.testbeds.append(self.stack.enter_context(testbed))
            self._note(testbed, testbed.notes)

    def _set_offloads(self, _report: Report) -> None:
        for testbed in self.testbeds:
            testbed.set_offloads()

    def _measure(self, task: Task, _report: Report) -> None:
        taking = [
            testbed for testbed in self.testbeds if takes_part(testbed.mode, task.suite, task.where)
        ]
        if not any(testbed.mode == DIRECT for testbed in taking):
            raise BpfsvcError("nothing to compare with: direct was not set up")
        measure(task, taking, self.context.scale, self.context.results)
        for testbed in taking:
            # Not when it is set up: an agent may find out later that it may use the fast path.
            self._note(testbed, testbed.refusals())

    def _note(self, testbed: TrafficTestbed, texts: Sequence[str]) -> None:
        """Add remarks about a testbed to the notes, each text once."""
        about, notes = f"{services_text(self.services)}, {testbed.mode}", self.context.results.notes
        notes += [note for text in texts if (note := f"{about}: {text}") not in notes]

    def _end(self, _report: Report) -> None:
        try:
            for testbed in self.testbeds:
                self.context.results.cells += _side_figures(testbed, self.services)
        finally:
            self.testbeds.clear()
            self.stack.close()


def steps(
    context: Context, suites: Collection[str], tools: Tools, stack: ExitStack
) -> Iterator[Step]:
    """Return the steps of some of ``SUITES``, size by size; the edge at the outer sizes only."""
    for services in sorted(context.scale.services):
        outer = services in context.scale.outer_sizes
        here = [suite for suite in SUITES if suite in suites and (suite != "edge" or outer)]
        modes = [mode for mode in _modes(context) if any(takes_part(mode, suite) for suite in here)]
        if here:
            own = ExitStack()
            stack.push(own)
            yield from _Size(context, services, tools, own).steps(modes, here)


def _modes(context: Context) -> Sequence[str]:
    """Return the modes of a run, without recorded rules that the real kube-proxy writes too."""
    if context.scale.modes:
        return context.modes
    real = {KUBE_PROXIES[mode] for mode in context.modes if mode in KUBE_PROXIES}
    return [mode for mode in context.modes if mode not in real]


def _side_figures(testbed: TrafficTestbed, services: int) -> Iterator[Cell]:
    """Return how long a testbed's nodes took to be programmed, and the memory that takes."""
    if testbed.synced:
        # The first agent of a kind also compiles.
        times = testbed.synced[1:] if testbed.mode in AGENTS else testbed.synced
        alone = testbed.mode in RECORDED
        kind = f"first sync, {'the tool alone' if alone else 'from the start of the process'}"
        yield Cell("start", kind, testbed.mode, services, "s", tuple(times))
    for kind, sizes in testbed.memory().items():
        yield Cell("memory", kind, testbed.mode, services, "MB", tuple(sizes))
