"""Endpoints that change all the time: whether the agent keeps up, and at what cost.

An API server moves one endpoint of one Service after the other, at an even rate. Meanwhile a
Service is changed now and then whose packets are watched: how long that takes shows how far the
agent is behind. When the rest is over, one more change must not take longer than in quiet times.
Before, the agent is left alone for a while, which shows what it costs to do nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from bpfsvc.devtools.bench.figures import services_text
from bpfsvc.devtools.bench.modes import DEFAULT
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, Step
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.supplies import BenchServer
from bpfsvc.devtools.bench.testbeds.agents import CACHE, BenchAgent
from bpfsvc.devtools.bench.testbeds.change import AgentChangeTestbed

_PAUSES = (0.05, 0.25)  # seconds between two changes that are watched
_OTHERS = 100  # Services at least, or nothing could change all the time


def steps(context: Context) -> Iterator[Step]:
    """Return the one step, at the largest size of cluster."""
    scale = context.scale
    services = max(_OTHERS, *scale.services)
    seconds = setup_seconds(DEFAULT, services) + 2 * scale.idle_seconds + scale.churn_seconds
    yield Step(f"churn: {services_text(services)}", seconds, partial(_churn, context, services))


def _churn(context: Context, services: int, report: Report) -> None:
    scale = context.scale

    def add(kind: str, unit: str, *values: float) -> None:
        context.results.cells.append(Cell("churn", kind, DEFAULT, services, unit, values))

    with AgentChangeTestbed(services, "API", CACHE) as testbed, testbed.agent() as agent:
        agent.healthy()
        watch = partial(testbed.timed_changes, pauses=_PAUSES)
        testbed.change()
        add("a watched change, quiet", "ms", *watch(_until(scale.idle_seconds)))
        report(f"the agent is left alone for {scale.idle_seconds:g} s")
        idle = _cpu(agent, lambda: time.sleep(scale.idle_seconds))
        report(f"{scale.churn_rate} changes a second for {scale.churn_seconds:g} s")
        run = _Run(testbed.supply, scale.churn_rate, scale.churn_seconds)
        busy = _cpu(
            agent,
            lambda: add("a watched change, while all change", "ms", *watch(run)),
        )
        last, _ = testbed.change()
        add("one more change, afterwards", "ms", last * 1000)
        add("changes made", "", run.answer["changes"])
        add("changes made", "per second", run.answer["rate"])
        add("changes sent, 99 of 100 within", "ms", run.answer["lag"].get("p99", 0.0))
        add("until all was sent", "s", run.answer["drained"])
        add("CPU of the agent, idle", "% of a core", idle)
        add("CPU of the agent, busy", "% of a core", busy)
        add("agent, RSS", "MB", agent.memory().rss)


class _Run:
    """The changes of all other Services, made by the server; iterate to wait for their end."""

    def __init__(self, server: Any, rate: int, seconds: float) -> None:
        assert isinstance(server, BenchServer)
        self._ask = partial(server.ask, "run", rate=rate, seconds=seconds)
        self._thread = threading.Thread(target=self._make)
        self.answer: dict[str, Any] = {}

    def __iter__(self) -> Iterator[None]:
        self._thread.start()
        while self._thread.is_alive():
            yield None

    def _make(self) -> None:
        self.answer = self._ask()


def _until(seconds: float) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield None


def _cpu(agent: BenchAgent, act: Callable[[], object]) -> float:
    """Return the share of a core, in percent, that the agent uses meanwhile."""
    before, began = agent.cpu_seconds(), time.monotonic()
    act()
    return 100 * (agent.cpu_seconds() - before) / (time.monotonic() - began)
