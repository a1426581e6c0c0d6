"""A run: which suites there are, what each is made of, and how one is carried out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from bpfsvc.bench import load
from bpfsvc.bench.clusters.modes import possible
from bpfsvc.bench.figures import SUITES, Scale
from bpfsvc.bench.results import Results
from bpfsvc.bench.rivals.kubeproxy import Layout
from bpfsvc.bench.runs.interruption import Interruption
from bpfsvc.bench.runs.machine import machine
from bpfsvc.bench.runs.progress import Progress
from bpfsvc.bench.stands.stand import Means
from bpfsvc.bench.steps import Step, Watcher, take, total
from bpfsvc.bench.suites import change, churn, flood, frames, programs, start, traffic
from bpfsvc.bench.suites.traffic import Traffic
from bpfsvc.bench.words import duration, services
from bpfsvc.lab import sandbox

_Steps = Callable[[Scale, Sequence[str], Results, dict[str, int]], Iterator[Step]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is wanted of a run.

    ``suites``: some of ``figures.SUITES``. ``kube_proxy``: its binary if it is to be measured too,
    with ``layout``.
    """

    suites: Sequence[str]
    scale: Scale
    quick: bool = False
    kube_proxy: Path | None = None
    layout: Layout = "iptables"


_OTHERS: dict[str, _Steps] = {
    "frames": frames.steps,
    "programs": lambda scale, _modes, results, _slow: programs.steps(scale, results),
    "change": change.steps,
    "start": lambda scale, _modes, results, _slow: start.steps(scale, results),
    "churn": lambda scale, _modes, results, _slow: churn.steps(scale, results),
    "flood": lambda scale, _modes, results, _slow: flood.steps(scale, results),
}


class Run:
    """A context manager: the steps of a plan, known before the first is taken.

    To be opened in a sandbox.
    """

    def __init__(self, plan: Plan) -> None:
        scale = {"suites": tuple(plan.suites), **asdict(plan.scale)}
        self.results = Results(machine={**machine()}, scale=scale, quick=plan.quick)
        self._plan = plan
        self._stack = ExitStack()
        self.steps: list[Step] = []

    def __enter__(self) -> Run:
        self._interruption = self._stack.enter_context(Interruption())
        slow: dict[str, int] = {}
        plan, scale, results = self._plan, self._plan.scale, self.results
        modes, results.notes[:] = possible(scale.modes, kube_proxy=plan.kube_proxy is not None)
        if together := [suite for suite in traffic.SUITES if suite in plan.suites]:
            means = Means(
                load=load.build(sandbox.ROOT),
                limit=scale.rival_limit,
                kube_proxy=plan.kube_proxy,
                layout=plan.layout,
            )
            made = Traffic(modes, scale, means, results, self._stack, slow)
            self.steps += made.steps(together)
        for suite in SUITES:
            if suite in plan.suites and suite in _OTHERS:
                self.steps += _OTHERS[suite](scale, modes, results, slow)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __str__(self) -> str:
        """Say what will be done, and how long it takes."""
        plan = self._plan
        sizes = ", ".join(map(services, plan.scale.services))
        about = duration(total(self.steps))
        if plan.scale.limit:
            about += f", at most {duration(plan.scale.limit)}"
        return f"about {about}: {', '.join(plan.suites)} at {sizes}"

    def take(self, watcher: Watcher) -> Results:
        """Take all steps, and give what was measured."""
        began = time.monotonic()
        take(self.steps, self.results, watcher, self._interruption, self._plan.scale.limit)
        self.results.seconds = time.monotonic() - began
        return self.results


def measure(plan: Plan) -> Results:
    """Carry a plan out in a sandbox, and show how far it is.

    A process that is in none starts anew in one, so call this first of all (``sandbox.enter``).
    """
    sandbox.enter()
    with Run(plan) as run, Progress(total(run.steps)) as progress:
        progress.note(str(run))
        return run.take(progress)
