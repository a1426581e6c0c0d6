"""Turn by turn: one task measured on all testbeds of a size within the same seconds.

Other work of the machine affects all testbeds alike when turns are short and alternate. A round has
some turns of each testbed; their sums give one rate for each testbed, and one ratio to ``direct``.

Where each operation is a flow of its own, agents have work with it afterwards (``upkeep``). That
work is measured once for each testbed, kind and place, with the fewest clients, and added to the
CPU time for any number of clients: it does not depend on how many connections are made at once. The
measurement waits for some seconds; runs with a short limit have no time for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.clocks import SETTING, holds_softirqs, this_kernel_keeps_apart
from bpfsvc.devtools.bench.figures import Scale, clients_text, services_text
from bpfsvc.devtools.bench.load.tool import BULK, FLOWS, Outcome
from bpfsvc.devtools.bench.modes import DIRECT
from bpfsvc.devtools.bench.results import Cell, Results
from bpfsvc.devtools.bench.suites.rounds import Order
from bpfsvc.devtools.bench.testbeds import upkeep
from bpfsvc.devtools.bench.testbeds.traffic import TrafficTestbed

_FAILED = 0.001  # of all operations; more are worth a note
_BETWEEN = 0.01  # seconds that a turn takes beyond its slice
_SHORT_RUN = 600.0  # seconds; a run with a lower limit does not wait for agents
_UPKEEP_SECONDS = {("questions", "pod"): 8.0, ("connect", "node"): 8.0}
"""Until agents have removed all, by kind and place; other closed connections stay for a while."""
_CLOSED_SECONDS = 15.0

_NOT_CLEARED = "its CPU time does not include agents: connections were not forgotten in time"
NOT_COUNTED = f"no CPU time of operations is given: the kernel counts interrupts apart ({SETTING})"


class Task(NamedTuple):
    """One kind of load from one place, by so many clients at once."""

    suite: str
    kind: str
    where: str
    clients: int

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.suite}: {self.kind}, {self.where}, {clients_text(self.clients)}"

    def seconds(self, testbeds: int, scale: Scale) -> float:
        """Return about how long it takes."""
        turns = scale.rounds * scale.slices
        busy = testbeds * (turns * (scale.slice_seconds + _BETWEEN) + scale.warm_seconds + _BETWEEN)
        if not self.has_upkeep(scale):
            return busy
        return busy + _UPKEEP_SECONDS.get((self.kind, self.where), _CLOSED_SECONDS)

    def has_upkeep(self, scale: Scale) -> bool:
        """Return True if the work of agents is measured with this task."""
        short = 0 < scale.limit < _SHORT_RUN
        return self.kind in FLOWS and self.clients == min(scale.clients) and not short


@dataclass(slots=True)
class _Course:
    """The figures of a testbed, round by round."""

    testbed: TrafficTestbed
    task: Task
    slice_seconds: float
    values: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    total: Outcome = field(default_factory=Outcome)
    round: Outcome = field(default_factory=Outcome)
    round_cpu: float = 0.0
    share: float = 0.0
    """The largest part of a turn's time that was counted as CPU time."""
    operations: int = 0
    """All operations so far, including operations that are not timed."""
    failure: str = ""

    def warm_up(self, seconds: float) -> None:
        """Run once without counting: it fills routes, neighbours, caches, conntrack's tables."""
        self._run(seconds)
        self.round, self.round_cpu = Outcome(), 0.0

    def turn(self) -> None:
        """Take a turn, unless an earlier turn has failed."""
        self._run(self.slice_seconds)

    def _run(self, seconds: float) -> None:
        if self.failure:
            return
        _, kind, where, clients = self.task
        try:
            outcome, cpu = self.testbed.run(kind, where, clients, seconds)
        except (BpfsvcError, OSError) as error:
            self.failure = str(error)
            return
        self.round += outcome
        self.round_cpu += cpu
        self.share = max(self.share, cpu / outcome.seconds)
        self.operations += outcome.operations + outcome.errors

    def end_round(self) -> None:
        """Sum up the turns since the last round."""
        done, cpu = self.round, self.round_cpu
        self.round, self.round_cpu = Outcome(), 0.0
        if self.failure:
            return
        if not done.operations:
            self.failure = "nothing came back in a whole round"
            return
        self.total += done
        counted = done.bytes if self.task.kind == BULK else done.operations
        self.values.append(counted / done.seconds)
        self.cpu.append(cpu / done.operations * 1e6)

    def cell(self, direct: Sequence[float]) -> Cell:
        """Return its figures, with ratios to the values of ``direct``."""
        own, task = self.testbed.upkeep, self.task
        agents = own.of(task.kind, task.where) * 1e6 if own else 0.0
        # If a mode broke off, only the rounds that both modes have are compared.
        is_direct = self.testbed.mode == DIRECT
        pairs = [] if is_direct else zip(self.values, direct, strict=False)
        ratios = tuple(here / there for here, there in pairs)
        unit = "bytes per second" if task.kind == BULK else "per second"
        return self._empty_cell(task.suite, unit).having(
            values=tuple(self.values),
            ratios=ratios,
            reference=DIRECT if ratios else "",
            cpu=tuple(cost + agents for cost in self.cpu),
            latency=self.total.percentiles(),
            histogram=self.total.histogram,
        )

    def upkeep_cell(self) -> Cell | None:
        """Return the CPU time of agents since they were watched, if there are agents."""
        own = self.testbed.upkeep
        if not own or not self.operations or self.failure:
            return None
        seconds = own.take_cost(self.task.kind, self.task.where, self.operations)
        return self._empty_cell("agents", "µs").having(values=(round(seconds * 1e6, 3),))

    def _empty_cell(self, suite: str, unit: str) -> Cell:
        services = self.testbed.cluster.services
        _, kind, where, clients = self.task
        return Cell(suite, kind, self.testbed.mode, services, unit, (), where, clients)

    def notes(self) -> Iterator[str]:
        """Return failures, in words."""
        size = services_text(self.testbed.cluster.services)
        where = f"{self.testbed.mode} with {size}, {self.task}"
        done, errors = self.total.operations, self.total.errors
        if self.failure:
            yield f"{where}: {self.failure}"
        if errors > _FAILED * done:
            yield f"{where}: {errors} of {done + errors} operations failed"


def measure(task: Task, testbeds: Sequence[TrafficTestbed], scale: Scale, results: Results) -> None:
    """Measure a task on testbeds of one size, ``direct`` among them."""
    courses = [_Course(testbed, task, scale.slice_seconds) for testbed in testbeds]
    watched = task.has_upkeep(scale)
    all_upkeep = [testbed.upkeep for testbed in testbeds if testbed.upkeep] if watched else []
    begun = upkeep.begin(all_upkeep)
    _take_turns(task, courses, scale)
    if begun and upkeep.clear(all_upkeep):
        results.cells += filter(None, (course.upkeep_cell() for course in courses if all_upkeep))
    else:
        results.notes.append(f"{task}: {_NOT_CLEARED}")
    share = max(course.share for course in courses) or 1.0
    counted = holds_softirqs(share, this_kernel_keeps_apart())
    if not (counted or NOT_COUNTED in results.notes):
        results.notes.append(NOT_COUNTED)
    direct = next(course for course in courses if course.testbed.mode == DIRECT)
    for course in courses:
        if course.values:
            cell = course.cell(direct.values)
            results.cells.append(cell if counted else cell.having(cpu=()))
        results.notes += course.notes()


def _take_turns(task: Task, courses: Sequence[_Course], scale: Scale) -> None:
    for course in courses:
        course.warm_up(scale.warm_seconds)
    order = Order(courses, (courses[0].testbed.cluster.services, *task))
    for _ in range(scale.rounds):
        for _ in range(scale.slices):
            for course in order.next():
                course.turn()
        for course in courses:
            course.end_round()
