"""The start of an agent: for the first time, after a boot, and again; and its memory.

The first start of a checkout or a package includes the compiler. The first start of an image does
not, because the image carries the compiled programs. After a boot nothing is in the kernel, but
programs that were compiled before are kept in files. At a warm start everything is in the kernel:
the start interrupts nothing, so only the time until the agent knows everything again counts. A pod
sees the first balanced packet; the kubelet sees ``/healthz``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

from bpfsvc.datapath.loader.shipped import ship
from bpfsvc.devtools.bench.figures import Origin, Scale, services_text
from bpfsvc.devtools.bench.modes import DEFAULT
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, Step
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.testbeds.agents import BenchAgent, CompilerPeak
from bpfsvc.devtools.bench.testbeds.change import ChangeTestbed
from bpfsvc.devtools.lab import sandbox

_CHANGES = 100
_CHANGE_SECONDS = 0.01
_COMPILER_SECONDS = 3.0
_WARM = "warm"

_Figures = defaultdict[tuple[str, str, str], list[float]]
"""Suite, kind and unit -> the figures of several starts."""


def steps(context: Context) -> Iterator[Step]:
    """Return the steps for the smallest and the largest size, from an API server and from files."""
    scale = context.scale
    once = _COMPILER_SECONDS + _changes(scale) * _CHANGE_SECONDS
    for services in scale.outer_sizes:
        seconds = scale.starts * (1.5 * setup_seconds(DEFAULT, services) + once)
        for origin in scale.origins:
            act = partial(_start, context, services, origin)
            yield Step(f"start: {services_text(services)} from {origin}", seconds, act)


def _start(context: Context, services: int, origin: Origin, report: Report) -> None:
    scale = context.scale
    figures: _Figures = defaultdict(list)
    for number in range(scale.starts):
        report(f"{number + 1} of {scale.starts}")
        _measure(figures, services, origin, _changes(scale))
    context.results.cells += [
        Cell(suite, kind, DEFAULT, services, unit, tuple(values), origin)
        for (suite, kind, unit), values in figures.items()
    ]


def _measure(figures: _Figures, services: int, origin: Origin, changes: int) -> None:
    def add_start(testbed: ChangeTestbed, agent: BenchAgent, when: str) -> None:
        figures["start", f"until healthy, {when}", "s"].append(agent.healthy())
        figures["start", f"of CPU until healthy, {when}", "s"].append(agent.cpu_seconds())
        if when != _WARM:
            first = testbed.first_answer() - agent.started
            figures["start", f"until the first packet, {when}", "s"].append(first)

    def add_memory(agent: BenchAgent, when: str) -> None:
        for name, size in agent.memory()._asdict().items():
            figures["memory", f"agent, {name} {when}", "MB"].append(size)

    with ChangeTestbed(services, origin) as testbed:
        testbed.watch_first()
        with testbed.agent() as agent:
            compiler = CompilerPeak(agent)
            add_start(testbed, agent, "cold")
            figures["memory", "compiler, largest", "MB"].append(compiler.stop())
            add_memory(agent, "after a cold start")
            for _ in range(changes):
                testbed.change()
            add_memory(agent, f"after {changes} changes")
            figures["memory", "agent, largest", "MB"].append(agent.peak())
        for when, programs in (("after a boot", None), ("first of an image", _image_programs())):
            testbed.boot()
            testbed.watch_first()
            with testbed.agent(programs) as agent:
                add_start(testbed, agent, when)
        with testbed.agent() as agent:
            add_start(testbed, agent, _WARM)
            add_memory(agent, "after a warm start")


@cache
def _image_programs() -> Path:
    """Compile what an image carries, once for all starts; return the directory."""
    return ship(sandbox.ROOT / "programs").parent


def _changes(scale: Scale) -> int:
    return min(_CHANGES, scale.changes)
