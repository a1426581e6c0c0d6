"""What a packet costs at the edge: frames to a NodePort whose backend is on another node.

The figure is the time of a core per frame, from the frame's making to where it is counted, in
nanoseconds: that of ``drop``, where the node drops what it receives, is what comes before the node.
For comparison there are ``bounce``, where XDP sends frames back as they are, the least that
forwarding can cost on this wire, and ``routed``, where the node routes packets to no Service.

UDP, 64 flows, all of them known already: both directions of each are checked before, byte for byte,
and every frame sent must arrive.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.baselines import Baseline
from bpfsvc.devtools.bench.cluster import NODE_PORT, BenchCluster
from bpfsvc.devtools.bench.figures import services_text
from bpfsvc.devtools.bench.modes import AGENTS, DEFAULT, RECORDED, STACK, XDP
from bpfsvc.devtools.bench.packets.flows import Place
from bpfsvc.devtools.bench.results import Cell
from bpfsvc.devtools.bench.steps import Context, Report, SlowModes, Step
from bpfsvc.devtools.bench.suites.rounds import Order, take_round
from bpfsvc.devtools.bench.suites.setup_times import setup_seconds
from bpfsvc.devtools.bench.testbeds.agents import PODS, BenchAgent, cores, keep_off
from bpfsvc.devtools.bench.testbeds.frames import BACKEND, FLOWS, NODE, Frames, FrameTestbed, Lost
from bpfsvc.devtools.bench.testbeds.traffic import has_xdp
from bpfsvc.devtools.lab import sandbox

BARE = ("drop", "bounce", "routed")
"""Modes without any Service."""
_TAKING = (DEFAULT, STACK, XDP, *RECORDED)
"""Modes that differ here, where no socket asks. Real kube-proxies write what is recorded."""

_FRAMES = 50_000
_TURNS = 2
_FRAME_SECONDS = 2e-6
_CALL_SECONDS = 0.03
_FEW = 0.001  # of all frames may pass the stack, beside one of each flow in each turn


@dataclass(slots=True)
class _Course:
    """A mode, and what each round measured."""

    mode: str
    testbed: FrameTestbed
    source: Frames
    past_the_stack: bool = False
    frames: int = _FRAMES
    values: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    failure: str = ""

    def turn(self) -> None:
        """Send once, unless that has failed. Frames must pass where the mode sends them."""
        if self.failure:
            return
        try:
            before = self.testbed.routed()
            self.turns.append(self.source.send(self.frames))
            routed = self.testbed.routed() - before
            if self.past_the_stack and routed > 2 * FLOWS + _FEW * self.frames:
                raise Lost(f"{routed} of {self.frames} frames were routed by the stack after all")
        except Lost as error:
            self.failure = str(error)

    def end_round(self) -> None:
        """Take the mean of the turns."""
        if not self.failure:
            self.values.append(sum(self.turns) / len(self.turns))
        self.turns = []


def steps(context: Context) -> Iterator[Step]:
    """Return the steps for the modes and those without a Service, at the outer sizes."""
    scale = context.scale
    modes = [mode for mode in context.modes if mode in _TAKING]
    turns = (scale.rounds + 1) * _TURNS * (len(modes) + len(BARE))
    for services in scale.outer_sizes:
        setting_up = sum(setup_seconds(mode, services) / 2 for mode in modes)
        yield Step(
            f"frames: {services_text(services)}",
            setting_up + turns * (_FRAMES * _FRAME_SECONDS + _CALL_SECONDS),
            partial(_measure, context, services, modes),
        )


def _measure(context: Context, services: int, modes: Sequence[str], report: Report) -> None:
    scale = context.scale
    cells, notes = measure(
        services,
        modes,
        report,
        rounds=scale.rounds,
        limit=scale.baseline_limit,
        slow=context.slow,
    )
    context.results.cells += cells
    context.results.notes += notes


def measure(
    services: int,
    modes: Sequence[str],
    report: Report,
    *,
    rounds: int = 7,
    frames: int = _FRAMES,
    limit: float = 60.0,
    slow: SlowModes | None = None,
) -> tuple[list[Cell], list[str]]:
    """Measure one size of cluster, all modes turn by turn; return also why some were not.

    ``frames`` are sent at a time, twice a round. ``limit``: seconds that a baseline may take to
    program the node. To be called in a sandbox.
    """
    notes: list[str] = []
    slow = slow or SlowModes()
    directory = sandbox.ROOT / f"frames-{services}"
    cluster = BenchCluster(services, directory, BACKEND.address, BACKEND.port)
    with ExitStack() as stack:
        directory.mkdir()
        stack.callback(shutil.rmtree, directory)
        courses = []
        for mode in (*BARE, *modes):
            report(f"setting {mode} up")
            try:
                courses.append(_set_up(stack, mode, cluster, limit, slow))
            except BpfsvcError as error:
                notes.append(f"frames: {mode} with {services_text(services)}: {error}")
        stack.enter_context(_one_core())
        order = Order(courses, ("frames", services))
        for course in courses:
            course.frames = frames
        for number in range(rounds + 1):
            report(f"round {number} of {rounds}")
            take_round(courses, order, _TURNS)
            if not number:  # the first round only warms up
                for course in courses:
                    course.values.clear()
    for course in courses:
        if course.failure:
            notes.append(f"frames: {course.mode} with {services_text(services)}: {course.failure}")
    cells = [
        Cell("frames", "datagrams", course.mode, services, "ns", tuple(course.values), "remote")
        for course in courses
        if course.values
    ]
    return cells, notes


def _set_up(
    stack: ExitStack, mode: str, cluster: BenchCluster, limit: float, slow: SlowModes
) -> _Course:
    """Set a mode up, to be taken down by ``stack``, or at once if that fails."""
    with ExitStack() as own, slow.watch(mode, cluster.services):
        course = _course(own, mode, cluster, limit)
        stack.push(own.pop_all())
    return course


def _course(stack: ExitStack, mode: str, cluster: BenchCluster, limit: float) -> _Course:
    testbed = stack.enter_context(FrameTestbed(f"{mode}-{cluster.services}"))
    if mode in BARE:
        if mode == "routed":
            testbed.open_flows(BACKEND, masqueraded=False)
        return _Course(mode, testbed, stack.enter_context(testbed.frames_to(BACKEND, mode)))
    node = testbed.node
    past_the_stack = False
    if mode in AGENTS:
        flags = ["--manifests", str(cluster.manifests()), *AGENTS[mode]]
        agent = stack.enter_context(BenchAgent(node, flags, cluster.directory / f"{mode}.log"))
        agent.healthy()
        keep_off(agent.pid, cores()[0])
        if mode == XDP and not has_xdp(node):
            raise BpfsvcError("the agent has attached no XDP program")
        # The fast path leaves packets from outside to the stack: only XDP forwards these.
        past_the_stack = mode == XDP
    else:
        Baseline(node, mode, cluster.ports, PODS, limit)
    to = Place(NODE, NODE_PORT)
    testbed.open_flows(to, masqueraded=True)
    frames = stack.enter_context(testbed.frames_to(to, mode))
    return _Course(mode, testbed, frames, past_the_stack)


@contextmanager
def _one_core() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores()[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
