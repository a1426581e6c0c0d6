"""From a change to changed packets: the one EndpointSlice of a Service moves to another pod.

An API server accepts the change, or a file is replaced. Then a client that asks from ever new
source ports waits for the first answer of the new backend. So the time includes the notification,
the work of the agent or of the real kube-proxy, and half a round trip. The pauses between changes
are uneven; otherwise changes would fall in step with the clocks of the agent.

kube-proxy may wait up to a second after it has written its rules (``minSyncPeriod``) before it
writes them again. The pauses before its changes are longer than that second, so that the second is
in no figure: every change finds kube-proxy idle.

Recorded rules have no figure here: a tool that replaces rules is only a part of the work that
kube-proxy does between the change and the packets.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

from bpfsvc.devtools.bench.figures import Origin, services_text
from bpfsvc.devtools.bench.modes import DEFAULT, KUBE_PROXIES, OURS
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, Step
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.testbeds.agents import CACHE
from bpfsvc.devtools.bench.testbeds.change import ChangeTestbed
from bpfsvc.devtools.lab.patience import wait

ORIGINS: tuple[Origin, ...] = ("API", "json")
_PAUSES = (0.02, 0.12)
_KUBE_PROXY_PAUSES = (1.2, 2.2)
"""Seconds between two changes, at least and at most."""
_WAIT = 0.02
_KUBE_PROXY_WAIT = (0.1, 4e-4)
"""Seconds, about, until packets follow; of kube-proxy also the seconds for each Service."""


def steps(context: Context) -> Iterator[Step]:
    """Return the steps for all sizes of cluster: an agent by each origin, and each kube-proxy.

    Agents run in the mode ``default``: all modes of bpfsvc follow a change in the same way.
    """
    scale = context.scale
    for services in scale.services:
        about = f"change: {services_text(services)}"
        if not OURS.isdisjoint(context.modes):
            pause = statistics.mean(_PAUSES)
            seconds = setup_seconds(DEFAULT, services) + scale.changes * (pause + _WAIT)
            for origin in ORIGINS:
                if origin in scale.origins:
                    act = partial(_agent, context, services, origin)
                    yield Step(f"{about}, agent ({origin})", seconds, act)
        once, per_service = _KUBE_PROXY_WAIT
        wait = statistics.mean(_KUBE_PROXY_PAUSES) + once + per_service * services
        for mode in context.modes:
            if mode in KUBE_PROXIES:
                seconds = setup_seconds(mode, services) / 2 + (scale.baseline_changes + 1) * wait
                act = partial(_kube_proxy, context, services, mode)
                yield Step(f"{about}, {mode}", seconds, act)


def _agent(context: Context, services: int, origin: Origin, report: Report) -> None:
    with ChangeTestbed(services, origin, CACHE) as testbed, testbed.agent() as agent:
        agent.healthy()
        times = _times(testbed, context.scale.changes, _PAUSES, report)
    context.results.cells.append(Cell("change", "change", DEFAULT, services, "ms", times, origin))


def _kube_proxy(context: Context, services: int, mode: str, report: Report) -> None:
    binary, scale = context.kube_proxy, context.scale
    assert binary is not None
    with (
        context.slow.watch(mode, services),
        ChangeTestbed(services, "API") as testbed,
        testbed.kube_proxy(binary, KUBE_PROXIES[mode]) as kube_proxy,
    ):
        kube_proxy.ready(2 * scale.baseline_limit)
        wait(kube_proxy.has_caught_up, "kube-proxy has written all rules", 2 * scale.baseline_limit)
        times = _times(testbed, scale.baseline_changes, _KUBE_PROXY_PAUSES, report)
    context.results.cells.append(Cell("change", "change", mode, services, "ms", times, "API"))


def _times(
    testbed: ChangeTestbed, count: int, pauses: tuple[float, float], report: Report
) -> tuple[float, ...]:
    """Return the milliseconds of ``count`` changes, after one that is not counted."""

    def during() -> Iterator[None]:
        for number in range(count):
            report(f"{number + 1} of {count}")
            yield None

    testbed.timed_changes([None], pauses)
    return tuple(testbed.timed_changes(during(), pauses))
