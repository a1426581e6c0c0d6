"""A run: the suites of a plan as steps, and how the steps are carried out."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.devtools.bench import baselines
from bpfsvc.devtools.bench.figures import Scale, duration_text, services_text
from bpfsvc.devtools.bench.kube_proxy import version
from bpfsvc.devtools.bench.load.tool import build
from bpfsvc.devtools.bench.modes import DIRECT, KUBE_PROXIES, MODES, Layout
from bpfsvc.devtools.bench.progress import Progress
from bpfsvc.devtools.bench.results import Results
from bpfsvc.devtools.bench.shortfall import LEFT_OUT
from bpfsvc.devtools.bench.steps import Context, Step
from bpfsvc.devtools.bench.suites import change, start, traffic
from bpfsvc.devtools.bench.testbeds.traffic import Tools
from bpfsvc.devtools.lab import sandbox

_VULNERABILITIES = Path("/sys/devices/system/cpu/vulnerabilities")
_SHOW_CURSOR = b"\33[?25h"
_ERRORS = (BpfsvcError, OSError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The plan of a run.

    ``suites``: some of ``figures.SUITES``. ``kube_proxy``: its program if it is to be measured too,
    in its modes ``layouts`` and in the modes that the scale names.
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
        machine = _machine()
        if plan.kube_proxy:
            machine["kube-proxy"] = version(plan.kube_proxy) or "of an unknown version"
        self.results = Results(
            machine=machine,
            date=datetime.now(UTC).date().isoformat(),
            scale={"suites": tuple(plan.suites), **asdict(plan.scale)},
            quick=plan.quick,
        )
        self.plan = plan
        self.steps: list[Step] = []
        self._stack = ExitStack()

    def __enter__(self) -> Run:
        plan, scale, results = self.plan, self.plan.scale, self.results
        layouts = plan.layouts if plan.kube_proxy else ()
        modes, results.notes[:] = possible(scale.modes, layouts, scale.without)
        context = Context(scale, modes, results, plan.kube_proxy)
        if compared := [suite for suite in traffic.SUITES if suite in plan.suites]:
            tools = Tools(
                load=build(sandbox.ROOT),
                limit=scale.baseline_limit,
                kube_proxy=plan.kube_proxy,
                pods=scale.pods,
                pin=scale.pin,
                policies=scale.policies,
            )
            self.steps += traffic.steps(context, compared, tools, self._stack)
        if "change" in plan.suites:
            self.steps += change.steps(context)
        if "start" in plan.suites:
            self.steps += start.steps(context)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def seconds(self) -> float:
        """The seconds that all steps are planned to take."""
        return sum(step.seconds for step in self.steps)

    def take_steps(self, progress: Progress) -> Results:
        """Take all steps and return what was measured."""
        began = time.monotonic()
        take_steps(self.steps, self.results, progress, self.plan.scale.limit)
        self.results.seconds = time.monotonic() - began
        return self.results


def measure(plan: RunPlan) -> Results:
    """Carry a plan out in a sandbox, and show how far it is.

    A process that is in no sandbox starts anew in one, so call this function first of all
    (``sandbox.enter``).
    """
    sandbox.enter()
    signal.signal(signal.SIGINT, _exit_at_once)
    with Run(plan) as run, Progress(run.seconds) as progress:
        sizes = ", ".join(map(services_text, plan.scale.services))
        most = f", at most {duration_text(plan.scale.limit)}" if plan.scale.limit else ""
        progress.note(
            f"about {duration_text(run.seconds)}{most}: {', '.join(plan.suites)} at {sizes}"
        )
        return run.take_steps(progress)


def _exit_at_once(_number: int, _frame: FrameType | None) -> NoReturn:
    """End this process on ^C; the supervisor of the sandbox ends all other processes.

    ``KeyboardInterrupt`` is no way out: Python drops it in code that runs after a fork, and this
    program forks all the time. Taking testbeds down one by one would take long.
    """
    if os.isatty(2):
        os.write(2, _SHOW_CURSOR)
    os.write(2, b"\nError: interrupted\n")
    os._exit(128 + signal.SIGINT)


def take_steps(
    steps: Iterable[Step], results: Results, progress: Progress, limit: float = 0.0
) -> None:
    """Take steps; a step that fails, or that would end too late, becomes a note.

    ``limit``: seconds after which no step may end, as far as is known; 0 for none. ``SystemUnfit``
    is raised, because a missing tool would be missing for all steps.
    """

    def note(text: str) -> None:
        results.notes.append(text)
        progress.note(text)

    began = time.monotonic()
    late: list[str] = []
    for step in steps:
        over = time.monotonic() - began + step.seconds > limit
        if limit and over and not step.always:
            late.append(step.about)
            continue
        progress.show(step.about)
        try:
            step.act(lambda line, about=step.about: progress.show(f"{about}: {line}"))  # type: ignore[misc]
        except SystemUnfit:
            raise
        except _ERRORS as error:
            note(f"{step.about}: {_explained(error)}")
        progress.done(step.seconds)
    if late:
        note(f"{LEFT_OUT} {duration_text(limit)}: {'; '.join(late)}")


def _explained(error: BaseException) -> str:
    """Return the errors in words, the first error first.

    After a failure, taking down a half-built testbed may fail too; Python then raises the second
    error, which explains nothing.
    """
    texts = [str(error)]
    while (before := error.__context__) and not error.__suppress_context__:
        error = before
        if isinstance(error, _ERRORS):
            texts.insert(0, str(error))
    return "; and then: ".join(texts)


def possible(
    wanted: Sequence[str], layouts: Sequence[Layout], without: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Return the wanted modes that can run here, and a note for each other wanted mode.

    ``wanted`` empty means all modes but the modes ``without``, the real kube-proxy in the modes
    ``layouts``: none of them without its program. ``direct`` is always among them, because all
    modes are compared with it.
    """
    obstacles = {str(mode): reason for mode, reason in baselines.obstacles().items()}
    modes, notes = [], []
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
            modes.append(mode)
    return modes, notes


def _machine() -> dict[str, str | int]:
    """Return kernel, processor and other facts about this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "processor": next(models, "unknown"),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "mitigations": mitigations(_VULNERABILITIES),
    }


def mitigations(directory: Path) -> str:
    """Return the kernel's mitigations of faults of this CPU: names and, after each, how.

    ``directory``: with a file for each fault, as sysfs has it.
    """
    states = {file.name: file.read_text().strip() for file in sorted(directory.glob("*"))}
    return (
        ", ".join(
            f"{name} ({state.removeprefix('Mitigation: ')})"
            for name, state in states.items()
            if state != "Not affected"
        )
        or "none"
    )
