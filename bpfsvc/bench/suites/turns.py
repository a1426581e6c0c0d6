"""Turn by turn: one task measured on all stands of a size within the same seconds.

What else a machine does falls on all alike when turns are short and alternate. A round has some
turns of each stand; their sums give one rate for each stand, and one ratio to ``direct``. Who comes
next is chance (``order``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bpfsvc.bench.clusters.modes import DIRECT
from bpfsvc.bench.figures import Scale
from bpfsvc.bench.load import Outcome
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.stands.stand import Stand
from bpfsvc.bench.suites.order import Order
from bpfsvc.bench.words import clients as clients_in_words
from bpfsvc.bench.words import services as services_in_words
from bpfsvc.errors import BpfsvcError

BULK = "bulk"
_LOST = 0.001  # of all operations; more are worth a note
_BETWEEN = 0.01  # seconds that a turn takes beyond its slice


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
        return stands * (turns * (scale.slice_seconds + _BETWEEN) + scale.warm_seconds + _BETWEEN)


@dataclass(slots=True)
class _Course:
    """What a stand did, round by round."""

    stand: Stand
    values: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    total: Outcome = field(default_factory=Outcome)
    round: Outcome = field(default_factory=Outcome)
    round_cpu: float = 0.0
    failure: str = ""

    def turn(self, task: Task, seconds: float) -> None:
        """Take a turn, unless one has failed."""
        if self.failure:
            return
        try:
            outcome, cpu = self.stand.run(task.kind, task.where, task.clients, seconds)
        except BpfsvcError as error:
            self.failure = str(error)
            return
        self.round += outcome
        self.round_cpu += cpu

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
        mode = self.stand.mode
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
            cpu=tuple(self.cpu),
            latency=self.total.percentiles(),
            histogram=self.total.histogram,
        )


def measure(task: Task, stands: Sequence[Stand], scale: Scale, results: Results) -> None:
    """Measure a task on stands of one size, ``direct`` among them."""
    courses = [_Course(stand) for stand in stands]
    for course in courses:  # routes, neighbours, caches, conntrack's tables
        course.turn(task, scale.warm_seconds)
        course.round, course.round_cpu = Outcome(), 0.0
    order = Order(courses)
    for _ in range(scale.rounds):
        for _ in range(scale.slices):
            for course in order.next():
                course.turn(task, scale.slice_seconds)
        for course in courses:
            course.end_round(task)
    direct = next(course for course in courses if course.stand.mode == DIRECT)
    for course in courses:
        if course.values:
            results.cells.append(course.cell(task, direct.values))
        results.notes += _notes(task, course)


def _notes(task: Task, course: _Course) -> Iterator[str]:
    stand, total = course.stand, course.total
    where = f"{stand.mode} with {services_in_words(stand.cluster.services)}, {task}"
    if course.failure:
        yield f"{where}: {course.failure}"
    if total.errors > _LOST * total.operations:
        yield f"{where}: {total.errors} of {total.operations + total.errors} operations failed"
