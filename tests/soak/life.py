"""A life of two nodes, from the first start of their agents to what is left behind."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.services.plans import registry
from tests.lab.other_build import copy_with_another_layout
from tests.lab.testbed import Testbed, built_testbed
from tests.soak.events import Events
from tests.soak.sample import AgentFigures, Figures, entries, kernel_figures, limit
from tests.soak.slopes import Limit, Slope, slope
from tests.soak.traffic import Traffic

_NETWORK = {"layout": "routed", "pods_per_node": 3}
_OPTIONS = (
    *("--conntrack-udp-timeout", "10s", "--conntrack-udp-timeout-stream", "10s"),
    *("--history-megabytes", "1"),
)
"""The history is full after the warm-up: with 16 MB it would grow for hours, up to its limit."""
_WARM_UP = 0.2
"""The part of a life whose samples do not count."""

_FEWEST = 12
"""Samples of a life."""

_LATER = 1800.0
"""Seconds by which the last event may be late."""

_OVER = 120.0
"""Seconds in which all connections are over: ports that were chosen are kept for 60."""

_TABLES = ("connections", "new_connections", "udp_sockets")


class Growth(NamedTuple):
    """A figure over a life, after the warm-up."""

    name: str
    first: float
    last: float
    slope: Slope
    limit: Limit
    hours: float

    @property
    def is_allowed(self) -> bool:
        """True if it may be within its limit."""
        return self.limit.allows(self.slope, self.hours)


class Life(NamedTuple):
    """What a life was like.

    * ``failures``: connections that were lost or not made, by name.
    * ``left``: entries more than before the first event, by node and map, when all was over.
    * ``connections``: if there are any, the connections of that moment, for people.
    """

    seconds: float
    seed: int
    samples: int
    events: Counter[str]
    exchanges: int
    failures: Mapping[str, int]
    growths: Sequence[Growth]
    left: Mapping[str, int]
    connections: str

    @property
    def is_good(self) -> bool:
        """True if nothing was lost, nothing grows, and nothing was left."""
        grows = any(not growth.is_allowed for growth in self.growths)
        return not (self.failures or self.left or grows)


def live(seconds: float, every: float, seed: int) -> Life:
    """Live so long, with a sample every so many seconds, or when the event is over."""
    chance = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(dir=sandbox.ROOT) as newer,
        built_testbed(served=True, **_NETWORK) as testbed,
    ):
        copy_with_another_layout(Path(newer))
        events = Events(testbed, chance, Path(newer))
        testbed.cluster.options = _OPTIONS
        testbed.cluster.start()
        testbed.cluster.settle()
        before = _entries(testbed)
        with Traffic.running(testbed, chance, seconds + _LATER) as traffic:
            events.begin(traffic)
            samples = _samples(testbed, events, seconds, every)
            events.put_back()
            traffic.work_on()
            exchanges = traffic.exchanges
        left = _left(testbed, before)
        connections = _connections(testbed) if left else ""
    return Life(
        seconds,
        seed,
        len(samples),
        events.counts,
        exchanges,
        traffic.failures,
        growths(samples),
        left,
        connections,
    )


def _samples(
    testbed: Testbed, events: Events, seconds: float, every: float
) -> list[tuple[float, Figures]]:
    """Return samples, each with its time in hours, taken between events.

    On a slow machine it takes longer: a few samples say nothing.
    """
    agent = AgentFigures(testbed.cluster, testbed.node)
    began, samples = time.monotonic(), list[tuple[float, Figures]]()
    due = every
    while (now := time.monotonic() - began) < seconds or len(samples) < _FEWEST:
        if now >= due:
            figures = agent.read()
            for node in testbed.lab.nodes:
                figures |= kernel_figures(node)
            samples.append((now / 3600, figures))
            due = now + every
        events.happen()
    return samples


def growths(samples: Sequence[tuple[float, Figures]]) -> list[Growth]:
    """Return how each figure of the samples grows, after the warm-up."""
    end = samples[-1][0]
    warm = [(hour, figures) for hour, figures in samples if hour >= end * _WARM_UP]
    hours = [hour for hour, _ in warm]
    made = []
    for name in warm[0][1]:
        values = [figures[name] for _, figures in warm]
        allowed = limit(name, statistics.fmean(values))
        made.append(
            Growth(name, values[0], values[-1], slope(hours, values), allowed, hours[-1] - hours[0])
        )
    return made


def _entries(testbed: Testbed) -> dict[str, int]:
    """Return the entries of maps of Services and of connections, by node and map."""
    wanted = {*_TABLES, *(service_map.name for service_map in registry.MAPS)}
    return {
        f"{node.name}: {name}": count
        for node in testbed.lab.nodes
        for name, count in entries(node).items()
        if name in wanted
    }


def _left(testbed: Testbed, before: Mapping[str, int]) -> dict[str, int]:
    """Wait until all connections are over; return what there is more than before."""

    def more() -> dict[str, int]:
        now = _entries(testbed)
        return {name: now[name] - before[name] for name in now if now[name] > before[name]}

    try:
        wait(lambda: not more(), "all is over", _OVER)
    except TimeoutError:
        return more()
    return {}


def _connections(testbed: Testbed) -> str:
    dumps = (
        testbed.cluster.command(node, "maps", "dump", "connections") for node in testbed.lab.nodes
    )
    return "\n".join(dump.stdout for dump in dumps)
