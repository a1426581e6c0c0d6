"""Histories, one after the other or in several processes, until a time or a number is reached."""

from __future__ import annotations

import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bpfsvc.devtools.lab import sandbox
from tests.fuzz.controlled_node import ControlledNode
from tests.fuzz.events import Event, Generator
from tests.fuzz.minimise import minimised
from tests.fuzz.network import Paths, network
from tests.fuzz.passages import Different
from tests.fuzz.player import Player

EVENTS = 3000
"""Of a history."""

_PROCESS_STEP = 1_000_000
"""Seeds of histories begin so far apart for each seed of a run."""

_DETAILS = re.compile(r"Connection\(.*\)|\[[^]]*\]|0x[0-9a-f]+|\d[\d.]*")


@dataclass(frozen=True, slots=True)
class Failure:
    """A history that fails: the seed of its world, its events, and what is different."""

    seed: int
    events: tuple[Event, ...]
    text: str


@dataclass(slots=True)
class Result:
    """What came of a run. ``seconds`` are those of one process."""

    histories: int = 0
    events: int = 0
    runs: int = 0
    seconds: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Add the result of a process that ran at the same time."""
        self.histories += other.histories
        self.events += other.events
        self.runs += other.runs
        self.seconds = max(self.seconds, other.seconds)
        self.seen += other.seen
        self.failures += other.failures


def seeds(seed: int, process: int = 0, processes: int = 1) -> Iterator[int]:
    """Yield the seeds of the histories of one process."""
    at = seed * _PROCESS_STEP + process
    while True:
        yield at
        at += processes


def history(player: Player, seed: int, events: int = EVENTS) -> Iterator[Event]:
    """Begin the world of a seed; yield the events of its history."""
    player.begin(seed)
    generator = Generator(seed, player.model.world.targets)
    for _ in range(events):
        yield generator.event()


def first_failure(player: Player, seed: int, events: int = EVENTS) -> Failure | None:
    """Play the history of a seed; return its failure, minimised, or None."""
    played = []
    try:
        for event in history(player, seed, events):
            played.append(event)
            player.step(event)
        player.end()
    except Different as different:
        return _minimised(player, seed, played, str(different))
    return None


def failure_of(
    player: Player, seed: int, events: Sequence[Event], paths: Paths | None = None
) -> str:
    """Play events in the world of a seed; return what is different, or nothing.

    ``paths``: other ones than those of the seed.
    """
    player.begin(seed, paths)
    try:
        player.play(events)
        player.end()
    except Different as different:
        return str(different)
    return ""


def _minimised(player: Player, seed: int, events: Sequence[Event], text: str) -> Failure:
    kind = kind_of(text)
    short = minimised(events, lambda some: kind_of(failure_of(player, seed, some)) == kind)
    return Failure(seed, tuple(short), failure_of(player, seed, short) or text)


def kind_of(text: str) -> str:
    """Return a text of a difference without its numbers: two with one kind have one cause."""
    return _DETAILS.sub("", text)


def work(seed: int, process: int, processes: int, deadline: float, limit: int = 0) -> Result:
    """Play histories until a time of the monotonic clock, or so many of them."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {allowed[process % len(allowed)]})
    with _player(process) as player:
        return _played(player, seeds(seed, process, processes), deadline, limit)


@contextmanager
def _player(process: int) -> Iterator[Player]:
    name = f"fuzz-{process}"
    node = ControlledNode(sandbox.BPF_ROOT / name)
    try:
        with network(node, name) as made, made.entered():
            yield Player(node, made)
    finally:
        node.pinned.close()


def _played(player: Player, numbers: Iterator[int], deadline: float, limit: int) -> Result:
    result = Result()
    began = time.monotonic()
    kinds = set()
    for number in numbers:
        if time.monotonic() >= deadline or (limit and result.histories >= limit):
            break
        failure = first_failure(player, number)
        result.histories += 1
        result.events += EVENTS
        if failure and kind_of(failure.text) not in kinds:
            kinds.add(kind_of(failure.text))
            result.failures.append(failure)
    result.seconds = time.monotonic() - began
    result.runs, result.seen = player.runs, player.seen
    return result


def work_in_parallel(seed: int, processes: int, deadline: float) -> Result:
    """Play histories in several processes until a time of the monotonic clock."""
    context = multiprocessing.get_context("fork")
    jobs = [(seed, process, processes, deadline) for process in range(processes)]
    total = Result()
    with context.Pool(processes) as pool:
        for result in pool.starmap(work, jobs):
            total.add(result)
    return total
