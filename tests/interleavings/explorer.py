"""All interleavings of some actors: a search over states, each visited once.

Whoever acts does one access that another one may see, and all that nobody sees until the next one.
Which accesses others may see is found out by the search itself: it begins with none, and begins
anew while two actors access the same location and one of them writes it. So what is left out is
only the order of accesses that nobody else can tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.interleavings.actors import Actor
from tests.interleavings.machine import Machine
from tests.interleavings.shared import Location, Shared

State = tuple[Shared, tuple[Actor, ...]]
Check = Callable[[Shared, tuple[Actor, ...]], str]
"""Returns what is wrong when all have acted, or nothing."""

MOST_STATES = 100_000


class TooMany(Exception):
    """A search has more states than it may visit."""


@dataclass(slots=True)
class Explored:
    """What a search has seen. ``ends``: states in which all have acted."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    problem: str = ""
    schedule: list[str] = field(default_factory=list)


def explore(
    machine: Machine,
    shared: Shared,
    actors: Sequence[Actor],
    check: Check,
    most: int = MOST_STATES,
) -> Explored:
    """Run all interleavings; return the first one that ends badly, if any.

    :class:`TooMany` if there are more states than ``most``.
    """
    machine.visible = set()
    while True:
        search = _Search(machine, check, most)
        explored = search.run(shared, tuple(actors))
        more = search.visible() - machine.visible
        if explored.problem or not more:
            return explored
        machine.visible |= more


class _Search:
    def __init__(self, machine: Machine, check: Check, most: int) -> None:
        self._machine = machine
        self._check = check
        self._most = most
        self._seen: set[int] = set()
        self._readers: dict[Location, set[str]] = {}
        self._writers: dict[Location, set[str]] = {}
        self._before: dict[int, tuple[int, str]] = {}
        self._result = Explored()

    def visible(self) -> set[Location]:
        """Return the locations that two actors have accessed, and one has written."""
        return {
            location
            for location, writers in self._writers.items()
            if len(writers | self._readers.get(location, set())) > 1
        }

    def run(self, shared: Shared, actors: tuple[Actor, ...]) -> Explored:
        """Visit all states from a first one."""
        first = _hash(shared, actors)
        self._seen.add(first)
        waiting: list[tuple[int, State]] = [(first, (shared, actors))]
        result = self._result
        while waiting and not result.problem:
            at, (now, acting) = waiting.pop()
            result.states += 1
            if result.states > self._most:
                raise TooMany
            if all(actor.outcome for actor in acting):
                result.ends += 1
                result.problem = self._check(now, acting)
                if result.problem:
                    result.schedule = self._way(at)
                continue
            for number, actor in enumerate(acting):
                if not actor.outcome:
                    waiting += self._after(at, now, acting, number)
        return result

    def _after(
        self, at: int, shared: Shared, actors: tuple[Actor, ...], number: int
    ) -> list[tuple[int, State]]:
        """Let an actor do a step; return the state after it, unless it was seen before."""
        machine = self._machine
        then, actor = shared.copy(), actors[number].copy()
        machine.accesses = []
        actor.step(machine, then)
        self._result.steps += 1
        for _, _, reads, writes in machine.accesses:
            for location in reads:
                self._readers.setdefault(location, set()).add(actor.name)
            for location in writes:
                self._writers.setdefault(location, set()).add(actor.name)
        after = (*actors[:number], actor, *actors[number + 1 :])
        key = _hash(then, after)
        if key in self._seen:
            return []
        self._seen.add(key)
        program, place = machine.accesses[0][:2] if machine.accesses else ("", 0)
        self._before[key] = at, f"{actor.name}: {program} {place}"
        return [(key, (then, after))]

    def _way(self, key: int) -> list[str]:
        """Return the steps to a state, those of one actor in a row as one."""
        steps: list[str] = []
        while key in self._before:
            key, step = self._before[key]
            if steps and steps[-1].partition(":")[0] == step.partition(":")[0]:
                steps[-1] = step
            else:
                steps.append(step)
        return steps[::-1]


def _hash(shared: Shared, actors: tuple[Actor, ...]) -> int:
    """Return 64 bits of a state: two of a million states are equal once in 10 million searches."""
    return hash((shared.key(), tuple(actor.key() for actor in actors)))
