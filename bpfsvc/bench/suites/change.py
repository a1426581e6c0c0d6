"""From a change to changed packets: the one EndpointSlice of a Service moves to another pod.

An API server takes the change, or a file is replaced. Then a client that asks from ever new source
ports waits for the first answer of the new backend. So the time includes hearing of the change, the
agent's work, and half a round trip. The changes come at uneven intervals, or they would fall in
step with the clocks of the agent.

For rivals the time begins when the tool is started that replaces their rules. It includes that
start, as kube-proxy's own time does (which changes ipvs without a tool, though); a note tells what
it takes. It includes nothing of what kube-proxy does before, so that the real time is more.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack
from functools import partial

from bpfsvc.bench import rivals
from bpfsvc.bench.clusters.modes import AGENTS
from bpfsvc.bench.figures import Origin, Say, Scale
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.stands.agents import CACHE
from bpfsvc.bench.stands.scene import AgentScene, RivalScene, Scene
from bpfsvc.bench.steps import Step
from bpfsvc.bench.suites.durations import setup_seconds, too_slow, was_too_slow
from bpfsvc.bench.words import services as in_words
from bpfsvc.errors import BpfsvcError

ORIGINS: tuple[Origin, ...] = ("API", "json")
_PAUSES = (0.02, 0.12)  # seconds between two changes
_WAIT = 0.02  # about, until a change is seen
_RIVAL_WAIT = 1.2e-4  # the same, for each Service


_Slow = MutableMapping[str, int]


def steps(scale: Scale, modes: Sequence[str], results: Results, slow: _Slow) -> Iterator[Step]:
    """Measure at all sizes of cluster: an agent of either origin, and the rivals among ``modes``.

    Agents are those of ``tc``: what clients' packets meet makes no difference to them. ``slow``:
    the smallest cluster that was too large for a mode, by mode; others are added.
    """
    for services in scale.services:
        about = f"change: {in_words(services)}"
        if not set(modes).isdisjoint(AGENTS):
            for origin in (one for one in ORIGINS if one in scale.origins):
                each = statistics.mean(_PAUSES) + _WAIT
                seconds = setup_seconds("tc", services) + scale.changes * each
                act = partial(_agent, services, origin, scale, results)
                yield Step(f"{about}, agent ({origin})", seconds, act)
        for mode in modes:
            if mode in rivals.MODES:
                each = statistics.mean(_PAUSES) + _RIVAL_WAIT * services
                seconds = setup_seconds(mode, services, scale.rival_limit) / 2
                seconds += scale.rival_changes * each
                act = partial(_rival, services, mode, scale, results, slow)
                yield Step(f"{about}, {mode}", seconds, act)


def _agent(services: int, origin: Origin, scale: Scale, results: Results, say: Say) -> None:
    with AgentScene(services, origin, CACHE) as scene, scene.agent() as agent:
        agent.healthy()
        results.cells.append(_cell(scene, "tc", services, origin, scale.changes, say))


def _rival(services: int, mode: str, scale: Scale, results: Results, slow: _Slow, say: Say) -> None:
    if reason := too_slow(slow, mode, services):
        raise BpfsvcError(reason)
    with ExitStack() as stack:
        try:
            scene = stack.enter_context(RivalScene(services, mode, scale.rival_limit))
            cell = _cell(scene, mode, services, "tool", scale.rival_changes, say)
        except rivals.TooSlow:
            was_too_slow(slow, mode, services)
            raise
        results.cells.append(cell)
        results.notes.append(
            f"change: {in_words(services)}, {mode}: each time includes what the tool takes with "
            f"nothing to do, {scene.empty * 1000:.1f} ms"
        )


def _cell(scene: Scene, mode: str, services: int, where: str, changes: int, say: Say) -> Cell:
    pause = random.Random(1)
    times = []
    scene.change()
    for number in range(changes):
        say(f"{number + 1} of {changes}")
        time.sleep(pause.uniform(*_PAUSES))
        seconds, _ = scene.change()
        times.append(seconds * 1000)
    return Cell(
        suite="change",
        kind="change",
        mode=mode,
        services=services,
        where=where,
        unit="ms",
        values=tuple(times),
    )
