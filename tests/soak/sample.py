"""What a node uses: its agent by the kernel's books, and the maps and pins of its programs."""

from __future__ import annotations

import time

import psutil

from bpfsvc.devtools.bench.testbeds.traffic import map_memory
from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.namespace import LabError
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.inspect.maps.node import sizes
from bpfsvc.inspect.reader import PinnedReader
from tests.lab.known_pods import opened
from tests.soak.slopes import Limit

Figures = dict[str, float]

_MB = 1 << 20
_AGENT = {
    "resident MB": Limit(1, 5),
    "descriptors": Limit(0.5, 5),
    "threads": Limit(0.5, 3),
    "processors": Limit(0.02, 0.1),
}
_KERNEL = {"MB of maps": Limit(1, 5), "pins": Limit(0.5, 0)}
_FILLS_UP = Limit(500, 20_000)
"""Of entries that outlive what they are for: it takes a minute or two until as many go as come.
An agent that is restarted removes some later. At the end none may be left."""

_FIXED = {
    **_AGENT,
    **_KERNEL,
    **dict.fromkeys(("connections", "netfilter_flows", "udp_sockets"), _FILLS_UP),
}


def limit(name: str, mean: float) -> Limit:
    """Return how fast a figure may grow; ``mean`` is that of its samples.

    How many entries there are is a matter of chance, for what is alive is.
    """
    _, _, what = name.partition(": ")
    return _FIXED.get(what) or Limit(5 + mean / 50, 40 + mean / 2)


class AgentFigures:
    """The figures of an agent that lives as long as the run."""

    def __init__(self, cluster: LabCluster, node: LabNode) -> None:
        self._name = node.name
        self._process = psutil.Process(cluster.agents[node.name].process.pid)
        self._used, self._at = self._cpu_seconds(), time.monotonic()

    def read(self) -> Figures:
        """Return them; ``processors``: how many it has used since the last time."""
        try:
            return self._read()
        except psutil.NoSuchProcess as error:
            raise LabError(f"the agent of {self._name} has ended") from error

    def _read(self) -> Figures:
        used, now = self._cpu_seconds(), time.monotonic()
        share = (used - self._used) / (now - self._at)
        self._used, self._at = used, now
        with self._process.oneshot():
            values = (
                self._process.memory_info().rss / _MB,
                self._process.num_fds(),
                self._process.num_threads(),
                share,
            )
        return {
            f"agent of {self._name}: {what}": value
            for what, value in zip(_AGENT, values, strict=True)
        }

    def _cpu_seconds(self) -> float:
        return float(sum(self._process.cpu_times()[:4]))


def entries(node: LabNode) -> dict[str, int]:
    """Return how many entries each map of a node has, of those that may fill up."""
    with opened(node) as pinned:
        rows = sizes(PinnedReader(pinned)).rows
    return {str(name): int(str(count)) for name, count, *_ in rows}


def kernel_figures(node: LabNode) -> Figures:
    """Return what a node's programs take in the kernel."""
    pins = sum(1 for path in node.pin_root.rglob("*") if not path.is_dir())
    values = (map_memory(node.pin_root), pins)
    figures = {f"{node.name}: {what}": value for what, value in zip(_KERNEL, values, strict=True)}
    return figures | {f"{node.name}: {name}": count for name, count in entries(node).items()}
