"""The suites ``pods`` and ``edge``: what traffic costs on each mode's way through a cluster.

``pods``: a client in a pod of node 1 (``where`` = pod), or on node 1 itself (node), asks a cluster
IP whose backend is a pod of node 2. ``edge``: a client outside asks a NodePort, of node 1 (remote:
the backend is elsewhere) or of node 2 (local). In mode ``direct`` the same client goes straight to
the backend, without the detour by node 1 that ``remote`` is.

From outside, no socket hook sees a client, so that ``socket`` is the same as ``tc`` there; pods do
not meet XDP on an uplink. Both are left out where they say nothing. What ``xdp`` gains is not seen
in ``edge`` either: packets of sockets are copied by veth before XDP sees them, on their way there
and back, which no real interface does. ``edge`` tells that it works; ``frames`` what it costs.

With the stands come figures that cost nothing more: how long each took to be programmed (suite
``start``), and what agents and maps weigh (``memory``).
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from functools import partial

from bpfsvc.bench import rivals
from bpfsvc.bench.clusters.modes import AGENTS, DIRECT, Cluster
from bpfsvc.bench.figures import Say, Scale
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.rivals import TooSlow
from bpfsvc.bench.stands.stand import BACKEND, BACKEND_PORT, Means, Stand
from bpfsvc.bench.steps import Step
from bpfsvc.bench.suites.durations import setup_seconds, too_slow, was_too_slow
from bpfsvc.bench.suites.turns import Task, measure
from bpfsvc.bench.words import services as in_words
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab import sandbox

SUITES = ("pods", "edge")

KINDS = {
    "pods": ("connect", "request", "bulk", "datagrams", "questions"),
    "edge": ("connect", "request", "datagrams"),
}
_SILENT = {"pods": "xdp", "edge": "socket"}
"""By suite, the mode that says nothing there."""


def tasks(suite: str, scale: Scale) -> list[Task]:
    """Give what is measured on the stands of a size."""
    kinds = [kind for kind in KINDS[suite] if not scale.kinds or kind in scale.kinds]
    if suite == "pods":
        ways = [(kind, "pod") for kind in kinds]
        ways += [("connect", "node")] if "connect" in kinds else []
    else:
        ways = [(kind, where) for where in ("remote", "local") for kind in kinds]
    return [Task(suite, kind, where, number) for kind, where in ways for number in scale.clients]


class Traffic:
    """The suites on all sizes of cluster. ``modes``: those that are possible here.

    ``slow``: the smallest cluster that was too large for a mode, by mode; others are added.
    """

    def __init__(
        self,
        modes: Sequence[str],
        scale: Scale,
        means: Means,
        results: Results,
        stack: ExitStack,
        slow: MutableMapping[str, int],
    ) -> None:
        self._modes, self._scale, self._means = modes, scale, means
        self._results, self._stack, self._slow = results, stack, slow

    def steps(self, suites: Collection[str]) -> Iterator[Step]:
        """Give the steps of some suites, size by size; the edge at the outer sizes only."""
        sizes = sorted(self._scale.services)
        for services in sizes:
            outer = services in (sizes[0], sizes[-1])
            here = [one for one in SUITES if one in suites and (one != "edge" or outer)]
            silent = {_SILENT[suite] for suite in here} if len(here) < 2 else set()
            needed = [mode for mode in self._modes if mode not in silent]
            if here:
                yield from self._size(services, needed, here)

    def _size(self, services: int, modes: Sequence[str], suites: Sequence[str]) -> Iterator[Step]:
        """Set all stands up, measure, and take them down."""
        stands: list[Stand] = []
        own = ExitStack()
        self._stack.push(own)
        directory = sandbox.ROOT / f"cluster-{services}"
        cluster = Cluster(services, directory, BACKEND, BACKEND_PORT)
        for mode in modes:
            yield Step(
                f"{in_words(services)}: setting {mode} up",
                setup_seconds(mode, services, self._means.limit),
                partial(self._set_up, mode, cluster, stands, own),
            )
        for suite in suites:
            if suite == "edge":
                yield Step("edge: offloads", 1.0, partial(_offload, stands), always=True)
            taking = [mode for mode in modes if mode != _SILENT[suite]]
            for task in tasks(suite, self._scale):
                yield Step(
                    f"{in_words(services)}, {task}",
                    task.seconds(len(taking), self._scale),
                    partial(self._measure, task, stands),
                )
        yield Step(
            f"{in_words(services)}: weighing and taking down",
            1.0 + 3e-4 * services,
            partial(self._end, services, stands, own),
            always=True,
        )

    def _set_up(
        self, mode: str, cluster: Cluster, stands: list[Stand], own: ExitStack, _say: Say
    ) -> None:
        if reason := too_slow(self._slow, mode, cluster.services):
            raise BpfsvcError(reason)
        if not cluster.directory.exists():
            cluster.directory.mkdir()
            own.callback(shutil.rmtree, cluster.directory)
        try:
            stand = own.enter_context(Stand(mode, cluster, self._means))
        except TooSlow:
            was_too_slow(self._slow, mode, cluster.services)
            raise
        stands.append(stand)

    def _measure(self, task: Task, stands: Sequence[Stand], _say: Say) -> None:
        taking = [stand for stand in stands if stand.mode != _SILENT[task.suite]]
        if not any(stand.mode == DIRECT for stand in taking):
            raise BpfsvcError("nothing to compare with: direct was not set up")
        measure(task, taking, self._scale, self._results)

    def _end(self, services: int, stands: list[Stand], own: ExitStack, _say: Say) -> None:
        try:
            for stand in stands:
                self._results.cells += _weights(stand, services)
        finally:
            stands.clear()
            own.close()


def _offload(stands: Sequence[Stand], _say: Say) -> None:
    for stand in stands:
        stand.set_offloads()


def _weights(stand: Stand, services: int) -> Iterator[Cell]:
    """Give how long a stand's nodes took to be programmed, and what that weighs."""
    if stand.synced:
        # The first agent of a kind also compiles.
        times = stand.synced[1:] if stand.mode in AGENTS else stand.synced
        alone = stand.mode in rivals.MODES
        yield Cell(
            suite="start",
            kind=f"first sync, {'the tool alone' if alone else 'from the start of the process'}",
            mode=stand.mode,
            services=services,
            unit="s",
            values=tuple(times),
        )
    for kind, sizes in stand.memory().items():
        yield Cell(
            suite="memory",
            kind=kind,
            mode=stand.mode,
            services=services,
            unit="MB",
            values=tuple(sizes),
        )
