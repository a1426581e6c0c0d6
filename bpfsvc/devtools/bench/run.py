"""A run: the suites of a plan as steps, and how they are carried out."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from bpfsvc.devtools.bench import baselines
from bpfsvc.devtools.bench.figures import SUITES, Scale, duration_text, services_text
from bpfsvc.devtools.bench.interruption import Interruption
from bpfsvc.devtools.bench.kube_proxy import version
from bpfsvc.devtools.bench.load.tool import build
from bpfsvc.devtools.bench.modes import DIRECT, KUBE_PROXIES, MODES, Layout
from bpfsvc.devtools.bench.progress import Progress
from bpfsvc.devtools.bench.results import Results
from bpfsvc.devtools.bench.steps import Context, Step, Watcher, take, total
from bpfsvc.devtools.bench.suites import change, churn, flood, frames, programs, start, traffic
from bpfsvc.devtools.bench.testbeds.traffic import Tools
from bpfsvc.devtools.lab import sandbox

_VULNERABILITIES = Path("/sys/devices/system/cpu/vulnerabilities")

_STEPS: dict[str, Callable[[Context], Iterator[Step]]] = {
    "frames": frames.steps,
    "programs": programs.steps,
    "change": change.steps,
    "start": start.steps,
    "churn": churn.steps,
    "flood": flood.steps,
}
"""Of the suites that have testbeds of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What is wanted of a run.

    ``suites``: some of ``figures.SUITES``. ``kube_proxy``: its binary if it is to be measured too,
    in its modes ``layouts`` and those that the scale names.
    """

    suites: Sequence[str]
    scale: Scale
    quick: bool = False
    kube_proxy: Path | None = None
    layouts: Sequence[Layout] = ("nftables", "iptables")


class Run:
    """A context manager: the steps of a plan, known before the first is taken.

    To be opened in a sandbox.
    """

    def __init__(self, plan: RunPlan) -> None:
        scale = {"suites": tuple(plan.suites), **asdict(plan.scale)}
        machine = _machine()
        if plan.kube_proxy:
            machine["kube-proxy"] = version(plan.kube_proxy) or "of an unknown version"
        today = datetime.now(UTC).date().isoformat()
        self.results = Results(machine=machine, date=today, scale=scale, quick=plan.quick)
        self._plan = plan
        self._stack = ExitStack()
        self.steps: list[Step] = []

    def __enter__(self) -> Run:
        self._interruption = self._stack.enter_context(Interruption())
        plan, results = self._plan, self.results
        layouts = plan.layouts if plan.kube_proxy else ()
        modes, results.notes[:] = possible(plan.scale.modes, layouts, plan.scale.without)
        context = Context(plan.scale, modes, results)
        if together := [suite for suite in traffic.SUITES if suite in plan.suites]:
            tools = Tools(
                load=build(sandbox.ROOT),
                limit=plan.scale.baseline_limit,
                kube_proxy=plan.kube_proxy,
                pods=plan.scale.pods,
                pin=plan.scale.pin,
            )
            self.steps += traffic.steps(context, together, tools, self._stack)
        for suite in SUITES:
            if suite in plan.suites and suite in _STEPS:
                self.steps += _STEPS[suite](context)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __str__(self) -> str:
        """Return what will be done, and how long it takes, in words."""
        plan = self._plan
        sizes = ", ".join(map(services_text, plan.scale.services))
        about = duration_text(total(self.steps))
        if plan.scale.limit:
            about += f", at most {duration_text(plan.scale.limit)}"
        return f"about {about}: {', '.join(plan.suites)} at {sizes}"

    def take(self, watcher: Watcher) -> Results:
        """Take all steps and return what was measured."""
        began = time.monotonic()
        take(self.steps, self.results, watcher, self._interruption, self._plan.scale.limit)
        self.results.seconds = time.monotonic() - began
        return self.results


def measure(plan: RunPlan) -> Results:
    """Carry a plan out in a sandbox, and show how far it is.

    A process that is in none starts anew in one, so call this first of all (``sandbox.enter``).
    """
    sandbox.enter()
    with Run(plan) as run, Progress(total(run.steps)) as progress:
        progress.note(str(run))
        return run.take(progress)


def possible(
    wanted: Sequence[str], layouts: Sequence[Layout], without: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return those of the modes wanted that can run here, and a note for each other one.

    ``wanted`` empty means all but those ``without``, the real kube-proxy in the modes ``layouts``:
    none of them without its binary. ``direct`` is always among them, because all are compared with
    it.
    """
    obstacles = {str(mode): reason for mode, reason in baselines.obstacles().items()}
    found, notes = [], []
    for mode in MODES:
        if mode not in (*wanted, DIRECT) if wanted else mode in without:
            continue
        layout = KUBE_PROXIES.get(mode)
        if layout and not wanted and layout not in layouts:
            continue
        if layout and not layouts:
            notes.append(f"{mode} was not measured: no kube-proxy in PATH, nor by --kube-proxy")
        elif reason := obstacles.get(layout or mode, ""):
            notes.append(f"{mode} was not measured: {reason}")
        else:
            found.append(mode)
    return found, notes


def _machine() -> dict[str, str | int]:
    """Return what kind of machine this is."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "mitigations": mitigations(_VULNERABILITIES),
    }


def mitigations(directory: Path) -> str:
    """Return what the kernel does against faults of this CPU: names and, after each, how.

    ``directory``: with a file for each fault, as sysfs has it.
    """
    found = []
    for file in sorted(directory.glob("*")):
        state = file.read_text().strip()
        if state != "Not affected":
            found.append(f"{file.name} ({state.removeprefix('Mitigation: ')})")
    return ", ".join(found) or "none"
