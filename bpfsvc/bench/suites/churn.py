"""Endpoints that change all the time: whether the agent keeps up, and at what cost.

An API server moves one endpoint of one Service after the other, at an even rate. Meanwhile a
Service is changed now and then whose packets are watched: how long that takes tells how far the
agent is behind. When the rest is over, one more change must not take longer than in quiet times.
Before, the agent is left alone for a while, which shows what it costs to do nothing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from bpfsvc.bench.clusters.supplies import Server
from bpfsvc.bench.figures import Say, Scale
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.stands.agents import CACHE, Agent
from bpfsvc.bench.stands.scene import AgentScene
from bpfsvc.bench.steps import Step
from bpfsvc.bench.suites.durations import setup_seconds
from bpfsvc.bench.words import services as in_words

_PAUSES = (0.05, 0.25)  # seconds between two changes that are watched
_OTHERS = 100  # Services at least, or nothing could change all the time


def steps(scale: Scale, results: Results) -> Iterator[Step]:
    """Measure at the largest size of cluster."""
    services = max(_OTHERS, *scale.services)
    seconds = setup_seconds("tc", services) + 2 * scale.idle_seconds + scale.churn_seconds
    yield Step(f"churn: {in_words(services)}", seconds, partial(_churn, services, scale, results))


def _churn(services: int, scale: Scale, results: Results, say: Say) -> None:
    def note(kind: str, unit: str, *values: float) -> None:
        results.cells.append(
            Cell(suite="churn", kind=kind, mode="tc", services=services, unit=unit, values=values)
        )

    with AgentScene(services, "API", CACHE) as scene, scene.agent() as agent:
        agent.healthy()
        scene.change()
        note("a watched change, quiet", "ms", *_watch(scene, _until(scale.idle_seconds)))
        say(f"the agent is left alone for {scale.idle_seconds:g} s")
        idle = _cpu(agent, lambda: time.sleep(scale.idle_seconds))
        say(f"{scale.churn_rate} changes a second for {scale.churn_seconds:g} s")
        run = _Run(scene.supply, scale)
        busy = _cpu(
            agent,
            lambda: note("a watched change, while all change", "ms", *_watch(scene, run)),
        )
        last, _ = scene.change()
        note("one more change, afterwards", "ms", last * 1000)
        note("changes made", "", run.told["changes"])
        note("changes made", "per second", run.told["rate"])
        note("changes sent, 99 of 100 within", "ms", run.told["lag"].get("p99", 0.0))
        note("until all was sent", "s", run.told["drained"])
        note("CPU of the agent, idle", "% of a core", idle)
        note("CPU of the agent, busy", "% of a core", busy)
        note("agent, RSS", "MB", agent.memory().rss)


class _Run:
    """The changes of all other Services, made by the server while others work."""

    def __init__(self, server: Any, scale: Scale) -> None:
        assert isinstance(server, Server)
        self._server, self._scale = server, scale
        self._thread = threading.Thread(target=self._make)
        self.told: dict[str, Any] = {}

    def __iter__(self) -> Iterator[None]:
        self._thread.start()
        while self._thread.is_alive():
            yield None

    def _make(self) -> None:
        self.told = self._server.ask(
            "run", rate=self._scale.churn_rate, seconds=self._scale.churn_seconds
        )


def _watch(scene: AgentScene, during: Iterable[None]) -> list[float]:
    """Change the watched Service as long as something else lasts; give the ms of each change."""
    pause = random.Random(1)
    times = []
    for _ in during:
        time.sleep(pause.uniform(*_PAUSES))
        seconds, _ = scene.change()
        times.append(seconds * 1000)
    return times


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield None


def _cpu(agent: Agent, act: Callable[[], object]) -> float:
    """Give the share of a core, in percent, that the agent takes meanwhile."""
    before, began = agent.cpu_seconds(), time.monotonic()
    act()
    return 100 * (agent.cpu_seconds() - before) / (time.monotonic() - began)
