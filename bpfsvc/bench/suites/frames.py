"""What a packet costs at the edge: frames to a NodePort whose backend is on another node.

The figure is the time of a core per frame, from the frame's making to where it is counted, in
nanoseconds: that of ``drop``, where the node drops what it receives, is what comes before the node.
For comparison there are ``bounce``, where XDP gives frames back as they are, the least that
forwarding can cost on this wire, and ``stack``, where the node routes packets that name no Service.

UDP, 64 flows, all of them known already: both directions of each are proved before, byte for byte,
and every frame sent must arrive.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from bpfsvc.bench import rivals
from bpfsvc.bench.clusters.modes import AGENTS, PODS, Cluster
from bpfsvc.bench.clusters.objects import NODE_PORT
from bpfsvc.bench.figures import Say, Scale
from bpfsvc.bench.packets.flows import Place
from bpfsvc.bench.results import Cell, Results
from bpfsvc.bench.stands.agents import Agent, cores
from bpfsvc.bench.stands.stand import has_xdp
from bpfsvc.bench.stands.wire import BACKEND, FLOWS, NODE, Aimed, Lost, Wire
from bpfsvc.bench.steps import Step
from bpfsvc.bench.suites.durations import setup_seconds, too_slow, was_too_slow
from bpfsvc.bench.suites.order import Order
from bpfsvc.bench.words import services as in_words
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab import sandbox

BARE = ("drop", "bounce", "stack")
"""Modes without any Service."""
_PAST_THE_STACK = ("fast", "xdp")
_ALIKE = ("direct", "socket", "kube-proxy")
"""Modes that are another one here: ``stack``, ``tc``, ``iptables``."""

_FRAMES = 50_000
_SLICES = 2
_FRAME_SECONDS = 2e-6
_CALL_SECONDS = 0.03
_FEW = 0.001  # of all frames, beside one of each flow in each of its turns (bpf/edge.h)


_Slow = MutableMapping[str, int]


@dataclass(slots=True)
class _Course:
    """A mode, and what each round measured."""

    mode: str
    wire: Wire
    aimed: Aimed
    values: list[float] = field(default_factory=list)
    failure: str = ""


def steps(scale: Scale, modes: Sequence[str], results: Results, slow: _Slow) -> Iterator[Step]:
    """Measure ``modes`` and those without a Service, at the smallest and largest size.

    ``slow``: the smallest cluster that was too large for a mode, by mode; others are added.
    """
    taking = [mode for mode in modes if mode not in _ALIKE]
    turns = (scale.rounds + 1) * _SLICES * (len(taking) + len(BARE))
    for services in sorted({min(scale.services), max(scale.services)}):
        setting_up = sum(setup_seconds(mode, services) / 2 for mode in taking)
        yield Step(
            f"frames: {in_words(services)}",
            setting_up + turns * (_FRAMES * _FRAME_SECONDS + _CALL_SECONDS),
            partial(_measure, services, taking, scale, results, slow),
        )


def _measure(
    services: int,
    modes: Sequence[str],
    scale: Scale,
    results: Results,
    slow: _Slow,
    say: Say,
) -> None:
    cells, notes = measure(
        services, modes, say, rounds=scale.rounds, limit=scale.rival_limit, slow=slow
    )
    results.cells += cells
    results.notes += notes


def measure(
    services: int,
    modes: Sequence[str],
    say: Say,
    *,
    rounds: int = 7,
    frames: int = _FRAMES,
    limit: float = 60.0,
    slow: _Slow | None = None,
) -> tuple[list[Cell], list[str]]:
    """Measure one size of cluster, all modes turn by turn; give also why some were not.

    ``frames`` are sent at a time, twice a round. ``limit``: seconds that a rival may take to
    program the node; ``slow``: by mode, the smallest cluster that took one too long, which is
    kept up to date. To be called in a sandbox.
    """
    notes: list[str] = []
    slow = {} if slow is None else slow
    with ExitStack() as stack:
        cluster = Cluster(
            services, sandbox.ROOT / f"frames-{services}", BACKEND.address, BACKEND.port
        )
        cluster.directory.mkdir()
        stack.callback(shutil.rmtree, cluster.directory)
        courses = []
        for mode in (*BARE, *modes):
            say(f"setting {mode} up")
            own = stack.enter_context(ExitStack())
            try:
                if reason := too_slow(slow, mode, services):
                    raise BpfsvcError(reason)
                courses.append(_set_up(own, mode, cluster, limit))
            except BpfsvcError as error:
                if isinstance(error, rivals.TooSlow):
                    was_too_slow(slow, mode, services)
                own.close()
                notes.append(f"frames: {mode} with {in_words(services)}: {error}")
        stack.enter_context(_one_core())
        order = Order(courses, ("frames", services))
        for number in range(rounds + 1):
            say(f"round {number} of {rounds}")
            _take_round(courses, order, frames)
            if not number:
                for course in courses:
                    course.values.clear()
    for course in courses:
        if course.failure:
            notes.append(f"frames: {course.mode} with {in_words(services)}: {course.failure}")
    return [_cell(course, services) for course in courses if course.values], notes


def _set_up(stack: ExitStack, mode: str, cluster: Cluster, limit: float) -> _Course:
    wire = stack.enter_context(Wire(f"{mode}-{cluster.services}"))
    if mode in BARE:
        if mode == "stack":
            wire.lead(BACKEND, masqueraded=False)
        return _Course(mode, wire, stack.enter_context(wire.aimed(BACKEND, mode)))
    if mode in AGENTS:
        flags = ["--manifests", str(cluster.manifests()), *AGENTS[mode]]
        agent = stack.enter_context(Agent(wire.node, flags, cluster.directory / f"{mode}.log"))
        agent.healthy()
        agent.leave(cores()[0])
        if mode == "xdp" and not has_xdp(wire.node):
            raise BpfsvcError("the agent has attached no XDP program")
    else:
        rivals.program(wire.node, mode, cluster.balanced(), PODS, limit)
    to = Place(NODE, NODE_PORT)
    wire.lead(to, masqueraded=True)
    return _Course(mode, wire, stack.enter_context(wire.aimed(to, mode)))


def _take_round(courses: Sequence[_Course], order: Order[_Course], frames: int) -> None:
    """Take two turns of each mode."""
    sums: dict[str, list[float]] = {}
    for course in (*order.next(), *order.next()):
        if course.failure:
            continue
        try:
            sums.setdefault(course.mode, []).append(_turn(course, frames))
        except Lost as error:
            course.failure = str(error)
    for course in courses:
        if not course.failure:
            course.values.append(sum(sums[course.mode]) / len(sums[course.mode]))


def _turn(course: _Course, frames: int) -> float:
    """Send; give ns per frame. Lost if they went another way than the mode's."""
    before = course.wire.routed()
    nanoseconds = course.aimed.send(frames)
    routed = course.wire.routed() - before
    if course.mode in _PAST_THE_STACK and routed > 2 * FLOWS + _FEW * frames:
        raise Lost(f"{routed} of {frames} frames were routed by the stack after all")
    return nanoseconds


@contextmanager
def _one_core() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores()[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _cell(course: _Course, services: int) -> Cell:
    return Cell(
        suite="frames",
        kind="datagrams",
        mode=course.mode,
        services=services,
        where="remote",
        unit="ns",
        values=tuple(course.values),
    )
