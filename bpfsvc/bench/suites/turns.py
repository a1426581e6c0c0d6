"""Turn by turn: one task measured on all stands of a size within the same seconds.

What else a machine does falls on all alike when turns are short and alternate. A round has some
turns of each stand; their sums give one rate for each stand, and one ratio to ``direct``. Who comes
next is chance (``order``).

Where each operation is a flow of its own, agents have work with it afterwards (``stands.upkeep``).
That is taken once for each stand, kind and place, with the fewest clients, and added to the CPU
time of all: what an agent does for a connection does not depend on how many are made at once. It
takes some seconds of waiting, for which runs with a short limit have no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bpfsvc.bench.clusters.modes import DIRECT
from bpfsvc.bench.figures import Scale
from bpfsvc.bench.load import BULK, FLOWS, Outcome
from bpfsvc.bench.processes.clocks import SETTING, holds_softirqs, this_kernel_keeps_apart
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.stands import upkeep
from bpfsvc.bench.stands.stand import Stand
from bpfsvc.bench.suites.order import Order
from bpfsvc.bench.words import clients as clients_in_words
from bpfsvc.bench.words import services as services_in_words
from bpfsvc.errors import BpfsvcError

_LOST = 0.001  # of all operations; more are worth a note
_BETWEEN = 0.01  # seconds that a turn takes beyond its slice
_HURRY = 600.0  # seconds; a run with a lower limit waits for no agent
_UPKEEP_SECONDS = {("questions", "pod"): 8.0, ("connect", "node"): 8.0}
"""In which agents have cleared all, by kind and place; else closed connections stay for a while."""
_CLOSED_SECONDS = 15.0

_NOT_CLEARED = "its CPU time is without that of agents: connections were not forgotten in time"
NOT_COUNTED = (
    f"no CPU time of operations is given: the kernel keeps that of interrupts apart ({SETTING})"
)


class Task(NamedTuple):
    """One kind of load from one place, by so many clients at once."""

    suite: str
    kind: str
    where: str
    clients: int

    def __str__(self) -> str:
        """Give it in words."""
        return f"{self.suite}: {self.kind}, {self.where}, {clients_in_words(self.clients)}"

    def seconds(self, stands: int, scale: Scale) -> float:
        """Reckon how long it takes."""
        turns = scale.rounds * scale.slices
        busy = stands * (turns * (scale.slice_seconds + _BETWEEN) + scale.warm_seconds + _BETWEEN)
        if not self.has_upkeep(scale):
            return busy
        return busy + _UPKEEP_SECONDS.get((self.kind, self.where), _CLOSED_SECONDS)

    def has_upkeep(self, scale: Scale) -> bool:
        """Say whether it is the task with which the work of agents is taken."""
        hurry = 0 < scale.limit < _HURRY
        return self.kind in FLOWS and self.clients == min(scale.clients) and not hurry


@dataclass(slots=True)
class _Course:
    """What a stand did, round by round."""

    stand: Stand
    values: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    total: Outcome = field(default_factory=Outcome)
    round: Outcome = field(default_factory=Outcome)
    round_cpu: float = 0.0
    share: float = 0.0
    """The largest part of a turn's time that was counted as CPU time."""
    operations: int = 0
    """All that ever were, those that are not timed among them."""
    failure: str = ""

    def turn(self, task: Task, seconds: float) -> None:
        """Take a turn, unless one has failed."""
        if self.failure:
            return
        try:
            outcome, cpu = self.stand.run(task.kind, task.where, task.clients, seconds)
        except (BpfsvcError, OSError) as error:
            self.failure = str(error)
            return
        self.round += outcome
        self.round_cpu += cpu
        self.share = max(self.share, cpu / outcome.seconds)
        self.operations += outcome.operations + outcome.errors

    def end_round(self, task: Task) -> None:
        """Sum up the turns since the last round."""
        done, cpu = self.round, self.round_cpu
        self.round, self.round_cpu = Outcome(), 0.0
        if self.failure:
            return
        if not done.operations:
            self.failure = "nothing came back in a whole round"
            return
        self.total += done
        self.values.append((done.bytes if task.kind == BULK else done.operations) / done.seconds)
        self.cpu.append(cpu / done.operations * 1e6)

    def cell(self, task: Task, direct: Sequence[float]) -> Cell:
        """Give it, with its ratios to the values of ``direct``."""
        mode, kept = self.stand.mode, self.stand.upkeep
        beside = kept.of(task.kind, task.where) * 1e6 if kept else 0.0
        # Of two alike, the shorter ends both: rounds that only one of them did compare nothing.
        pairs = [] if mode == DIRECT else zip(self.values, direct, strict=False)
        ratios = tuple(here / there for here, there in pairs)
        return Cell(
            suite=task.suite,
            kind=task.kind,
            mode=mode,
            services=self.stand.cluster.services,
            clients=task.clients,
            where=task.where,
            unit="bytes per second" if task.kind == BULK else "per second",
            values=tuple(self.values),
            ratios=ratios,
            reference=DIRECT if ratios else "",
            cpu=tuple(cost + beside for cost in self.cpu),
            latency=self.total.percentiles(),
            histogram=self.total.histogram,
        )

    def upkeep(self, task: Task) -> Cell | None:
        """Give what agents have done since they were watched, if there are any."""
        kept = self.stand.upkeep
        if not kept or not self.operations or self.failure:
            return None
        seconds = kept.take(task.kind, task.where, self.operations)
        return Cell(
            suite="agents",
            kind=task.kind,
            mode=self.stand.mode,
            services=self.stand.cluster.services,
            clients=task.clients,
            where=task.where,
            unit="µs",
            values=(round(seconds * 1e6, 3),),
        )


def measure(task: Task, stands: Sequence[Stand], scale: Scale, results: Results) -> None:
    """Measure a task on stands of one size, ``direct`` among them."""
    courses = [_Course(stand) for stand in stands]
    kept = [stand.upkeep for stand in stands if stand.upkeep] if task.has_upkeep(scale) else []
    watched = upkeep.begin(kept)
    _take_turns(task, courses, scale)
    if watched and upkeep.clear(kept):
        results.cells += filter(None, (course.upkeep(task) for course in courses if kept))
    else:
        results.notes.append(f"{task}: {_NOT_CLEARED}")
    counted = holds_softirqs(
        max(course.share for course in courses) or 1.0, this_kernel_keeps_apart()
    )
    if not (counted or NOT_COUNTED in results.notes):
        results.notes.append(NOT_COUNTED)
    direct = next(course for course in courses if course.stand.mode == DIRECT)
    for course in courses:
        if course.values:
            cell = course.cell(task, direct.values)
            results.cells.append(cell if counted else replace(cell, cpu=()))
        results.notes += _notes(task, course)


def _take_turns(task: Task, courses: Sequence[_Course], scale: Scale) -> None:
    for course in courses:  # routes, neighbours, caches, conntrack's tables
        course.turn(task, scale.warm_seconds)
        course.round, course.round_cpu = Outcome(), 0.0
    order = Order(courses, (courses[0].stand.cluster.services, *task))
    for _ in range(scale.rounds):
        for _ in range(scale.slices):
            for course in order.next():
                course.turn(task, scale.slice_seconds)
        for course in courses:
            course.end_round(task)


def _notes(task: Task, course: _Course) -> Iterator[str]:
    stand, total = course.stand, course.total
    where = f"{stand.mode} with {services_in_words(stand.cluster.services)}, {task}"
    if course.failure:
        yield f"{where}: {course.failure}"
    if total.errors > _LOST * total.operations:
        yield f"{where}: {total.errors} of {total.operations + total.errors} operations failed"
