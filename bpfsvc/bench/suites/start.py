"""The start of an agent: for the first time, after a boot, and again; and its weight.

The first start includes the compiler. After a boot nothing is in the kernel, but programs that were
compiled before are kept in files. Warm is a start where everything is in the kernel: it interrupts
nothing, so only the time until it knows all again counts. The first balanced packet is what a pod
sees; ``/healthz`` is what the kubelet sees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial

from bpfsvc.bench.figures import Origin, Say, Scale
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.stands.agents import CompilerPeak, Memory
from bpfsvc.bench.stands.scene import AgentScene
from bpfsvc.bench.steps import Step
from bpfsvc.bench.suites.durations import setup_seconds
from bpfsvc.bench.words import services as in_words

_CHANGES = 100
_CHANGE_SECONDS = 0.01
_COMPILER_SECONDS = 3.0

_Figures = defaultdict[tuple[str, str, str], list[float]]
"""Suite, kind and unit -> what several starts have measured."""


def steps(scale: Scale, results: Results) -> Iterator[Step]:
    """Measure at the smallest and the largest size, from an API server and from files."""
    once = _COMPILER_SECONDS + _changes(scale) * _CHANGE_SECONDS
    for services in sorted({min(scale.services), max(scale.services)}):
        seconds = scale.starts * (1.5 * setup_seconds("tc", services) + once)
        for origin in scale.origins:
            act = partial(_start, services, origin, scale, results)
            yield Step(f"start: {in_words(services)} from {origin}", seconds, act)


def _start(services: int, origin: Origin, scale: Scale, results: Results, say: Say) -> None:
    figures: _Figures = defaultdict(list)
    for number in range(scale.starts):
        say(f"{number + 1} of {scale.starts}")
        _measure(figures, services, origin, _changes(scale))
    results.cells += [
        Cell(
            suite=suite,
            kind=kind,
            mode="tc",
            services=services,
            where=origin,
            unit=unit,
            values=tuple(values),
        )
        for (suite, kind, unit), values in figures.items()
    ]


def _measure(figures: _Figures, services: int, origin: Origin, changes: int) -> None:
    def time(kind: str, seconds: float) -> None:
        figures["start", kind, "s"].append(seconds)

    def weigh(when: str, memory: Memory) -> None:
        for name, size in memory._asdict().items():
            figures["memory", f"agent, {name} {when}", "MB"].append(size)

    with AgentScene(services, origin) as scene:
        scene.watch_first()
        with scene.agent() as agent:
            compiler = CompilerPeak(agent)
            time("until healthy, cold", agent.healthy())
            time("of CPU until healthy, cold", agent.cpu_seconds())
            time("until the first packet, cold", scene.heard().at - agent.started)
            figures["memory", "compiler, largest", "MB"].append(compiler.stop())
            weigh("after a cold start", agent.memory())
            for _ in range(changes):
                scene.change()
            weigh(f"after {changes} changes", agent.memory())
            figures["memory", "agent, largest", "MB"].append(agent.peak())
        scene.boot()
        scene.watch_first()
        with scene.agent() as agent:
            time("until healthy, after a boot", agent.healthy())
            time("of CPU until healthy, after a boot", agent.cpu_seconds())
            time("until the first packet, after a boot", scene.heard().at - agent.started)
        with scene.agent() as agent:
            time("until healthy, warm", agent.healthy())
            time("of CPU until healthy, warm", agent.cpu_seconds())
            weigh("after a warm start", agent.memory())


def _changes(scale: Scale) -> int:
    return min(_CHANGES, scale.changes)
