"""From a change to changed packets: the one EndpointSlice of a Service moves to another pod.

An API server accepts the change, or a file is replaced. Then a client that asks from ever new
source ports waits for the first answer of the new backend. So the time includes the notification,
the agent's work, and half a round trip. The changes come at uneven intervals, or they would fall in
step with the clocks of the agent.

For baselines the time begins when the tool is started that replaces their rules. It includes that
start, as kube-proxy's own time does (which changes ipvs without a tool, though); a note says how
long the start takes. It includes nothing of what kube-proxy does before, so that the real time is
longer.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from bpfsvc.devtools.bench import baselines
from bpfsvc.devtools.bench.figures import Origin, services_text
from bpfsvc.devtools.bench.modes import DEFAULT, OURS
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, Step
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.testbeds.agents import CACHE
from bpfsvc.devtools.bench.testbeds.change import (
    AgentChangeTestbed,
    BaselineChangeTestbed,
    ChangeTestbed,
)

ORIGINS: tuple[Origin, ...] = ("API", "json")
_PAUSES = (0.02, 0.12)  # seconds between two changes
_WAIT = 0.02  # about, until a change is seen
_BASELINE_WAIT = 1.2e-4  # the same, for each Service


def steps(context: Context) -> Iterator[Step]:
    """Return the steps for all sizes of cluster: an agent by each origin, and each baseline.

    Agents are those of ``default``: the mode of clients' packets makes no difference to them.
    """
    scale, pause = context.scale, statistics.mean(_PAUSES)
    for services in scale.services:
        about = f"change: {services_text(services)}"
        if not OURS.isdisjoint(context.modes):
            for origin in (one for one in ORIGINS if one in scale.origins):
                seconds = setup_seconds(DEFAULT, services) + scale.changes * (pause + _WAIT)
                act = partial(_agent, context, services, origin)
                yield Step(f"{about}, agent ({origin})", seconds, act)
        for mode in context.modes:
            if mode in baselines.MODES:
                each = pause + _BASELINE_WAIT * services
                seconds = setup_seconds(mode, services, scale.baseline_limit) / 2
                seconds += scale.baseline_changes * each
                yield Step(f"{about}, {mode}", seconds, partial(_baseline, context, services, mode))


def _agent(context: Context, services: int, origin: Origin, report: Report) -> None:
    with AgentChangeTestbed(services, origin, CACHE) as testbed, testbed.agent() as agent:
        agent.healthy()
        cell = _cell(testbed, DEFAULT, services, origin, context.scale.changes, report)
        context.results.cells.append(cell)


def _baseline(context: Context, services: int, mode: str, report: Report) -> None:
    scale, results = context.scale, context.results
    with (
        context.slow.watch(mode, services),
        BaselineChangeTestbed(services, mode, scale.baseline_limit) as testbed,
    ):
        cell = _cell(testbed, mode, services, "tool", scale.baseline_changes, report)
        results.cells.append(cell)
        results.notes.append(
            f"change: {services_text(services)}, {mode}: each time includes what the tool takes "
            f"with nothing to do, {testbed.empty * 1000:.1f} ms"
        )


def _cell(
    testbed: ChangeTestbed, mode: str, services: int, where: str, count: int, report: Report
) -> Cell:
    def during() -> Iterator[None]:
        for number in range(count):
            report(f"{number + 1} of {count}")
            yield None

    testbed.change()
    times = testbed.timed_changes(during(), _PAUSES)
    return Cell("change", "change", mode, services, "ms", tuple(times), where)
