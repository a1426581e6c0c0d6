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
from typing import Any

from bpfsvc.bench.agents import Agent
from bpfsvc.bench.figures import Row, Say, Scale, Spread, percentile
from bpfsvc.bench.scene import Scene
from bpfsvc.bench.supplies import Server

_PAUSES = (0.05, 0.25)  # seconds between two changes that are watched


def churn(scale: Scale, say: Say) -> list[Row]:
    """Measure at the largest size of cluster."""
    services = max(scale.services)
    with Scene(services, "API") as scene:
        say(f"churn: starting an agent with {services} Services")
        with scene.agent() as agent:
            agent.healthy()
            scene.change()
            quiet = _watch(scene, _until(scale.idle_seconds), "quiet")
            say(f"churn: the agent is left alone for {scale.idle_seconds:.0f} s")
            idle = _cpu(agent, lambda: time.sleep(scale.idle_seconds))
            run = _Run(scene.supply, scale)
            say(f"churn: {scale.churn_rate} changes a second for {scale.churn_seconds:.0f} s")
            rows: list[Row] = []
            busy = _cpu(agent, lambda: rows.append(_watch(scene, run, "changes everywhere")))
            last, _ = scene.change()
            about: Row = {
                "services": services,
                "made": run.told["changes"],
                "a second": run.told["rate"],
                "sent ms 99%": run.told["lag"].get("p99", 0.0),
                "drained s": run.told["drained"],
                "one more ms": last * 1000,
                "CPU % idle": idle,
                "CPU % busy": busy,
                "RSS MB": agent.memory().rss,
            }
    return [about, quiet, *rows]


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


def _watch(scene: Scene, during: Iterable[None], when: str) -> Row:
    """Change the watched Service as long as something else lasts."""
    pause = random.Random(1)
    times = []
    for _ in during:
        time.sleep(pause.uniform(*_PAUSES))
        seconds, _ = scene.change()
        times.append(seconds * 1000)
    spread = Spread.of(times)
    return {
        "during": when,
        "changes watched": len(times),
        **spread.columns("ms"),
        "ms 99%": percentile(times, 99),
    }


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield None


def _cpu(agent: Agent, act: Callable[[], object]) -> float:
    """Give the share of a core, in percent, that the agent takes meanwhile."""
    before, began = agent.cpu_seconds(), time.monotonic()
    act()
    return 100 * (agent.cpu_seconds() - before) / (time.monotonic() - began)
