"""All interleavings of some actors: a search over states, each visited once.

An actor does one access that another actor may see, and all that no other actor sees until the next
one. Which accesses others may see is found out by the search itself: it begins with none, and
begins anew while two actors access the same location and one of them writes it. So what is left out
is only the order of accesses that no other actor can tell apart.

For the same reason a state has a single step where the next access of an actor is to locations that
no other actor will write any more, nor read if the access writes (a persistent set of one step:
P. Godefroid, Partial-Order Methods for the Verification of Concurrent Systems, 1996). What an actor
will access from a place in its program is also found out by the search: it begins anew while a path
has more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.interleavings.actors import Actor
from tests.interleavings.machine import Access, Machine
from tests.interleavings.shared import Location, Shared

State = tuple[Shared, tuple[Actor, ...]]
Place = tuple[object, ...]
"""An actor, and where it is in its program."""

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
    ahead = Ahead()
    while True:
        search = _Search(machine, check, most, ahead)
        explored = search.run(shared, tuple(actors))
        more = search.visible() - machine.visible
        is_complete = not ahead.learn() and not more
        if explored.problem or is_complete:
            return explored
        machine.visible |= more


class Ahead:
    """What actors will access, from each place at which they wait: as far as it is known."""

    def __init__(self) -> None:
        self._reads: dict[Place, set[Location]] = {}
        self._writes: dict[Place, set[Location]] = {}
        self._next: dict[Place, set[Place]] = {}
        self._own: dict[Place, tuple[set[Location], set[Location]]] = {}

    def note(self, place: Place, after: Place, accesses: Iterable[Access]) -> None:
        """Note a step of an actor from a place to another one."""
        self._next.setdefault(place, set()).add(after)
        reads, writes = self._own.setdefault(place, (set(), set()))
        for _, _, read, written in accesses:
            reads.update(read)
            writes.update(written)

    def learn(self) -> bool:
        """Follow all steps that were noted; return whether more is known now."""
        before = self._size()
        changed = True
        while changed:
            at = self._size()
            for place, (reads, writes) in self._own.items():
                all_reads = self._reads.setdefault(place, set())
                all_writes = self._writes.setdefault(place, set())
                all_reads |= reads
                all_writes |= writes
                for after in self._next[place]:
                    all_reads |= self._reads.get(after, set())
                    all_writes |= self._writes.get(after, set())
            changed = self._size() != at
        return self._size() != before

    def _size(self) -> int:
        return sum(map(len, (*self._reads.values(), *self._writes.values())))

    def meets(self, place: Place, accesses: Iterable[Access]) -> bool:
        """Return whether an actor at a place will access what others access now."""
        reads, writes = self._reads.get(place, set()), self._writes.get(place, set())
        return any(
            not (writes.isdisjoint((*read, *written)) and reads.isdisjoint(written))
            for _, _, read, written in accesses
        )


class _Step(NamedTuple):
    """The keys of the states after a step and before it; what was done; what others may see."""

    key: int
    before: int
    name: str
    after: State
    visible: list[Access]


class _Search:
    def __init__(self, machine: Machine, check: Check, most: int, ahead: Ahead) -> None:
        self._machine = machine
        self._ahead = ahead
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
            waiting += self._after_all(at, now, acting)
        return result

    def _after_all(
        self, at: int, shared: Shared, actors: tuple[Actor, ...]
    ) -> list[tuple[int, State]]:
        """Return the states after a step, unless they were seen before: after any actor's step.

        If the step of an actor meets nothing that others will do, after this step alone.
        """
        steps: list[_Step] = []
        places = {n: _place(actor) for n, actor in enumerate(actors) if not actor.outcome}
        for number in places:
            step = self._step(at, shared, actors, number)
            others = (place for other, place in places.items() if other != number)
            if not any(self._ahead.meets(place, step.visible) for place in others):
                return self._new([step])
            steps.append(step)
        return self._new(steps)

    def _new(self, steps: list[_Step]) -> list[tuple[int, State]]:
        """Return the states after steps that were not seen before."""
        new = []
        for step in steps:
            if step.key not in self._seen:
                self._seen.add(step.key)
                self._before[step.key] = step.before, step.name
                new.append((step.key, step.after))
        return new

    def _step(self, at: int, shared: Shared, actors: tuple[Actor, ...], number: int) -> _Step:
        """Return a step of an actor."""
        machine = self._machine
        then, actor = shared.copy(), actors[number].copy()
        machine.accesses = []
        place = _place(actor)
        actor.step(machine, then)
        visible = [
            access
            for access in machine.accesses
            if not machine.visible.isdisjoint((*access[2], *access[3]))
        ]
        self._ahead.note(place, _place(actor), visible)
        self._result.steps += 1
        for _, _, reads, writes in machine.accesses:
            for location in reads:
                self._readers.setdefault(location, set()).add(actor.name)
            for location in writes:
                self._writers.setdefault(location, set()).add(actor.name)
        after = (*actors[:number], actor, *actors[number + 1 :])
        program, line = machine.accesses[0][:2] if machine.accesses else ("", 0)
        name = f"{actor.name}: {program} {line}"
        return _Step(_hash(then, after), at, name, (then, after), visible)

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


def _place(actor: Actor) -> Place:
    return (actor.name, *actor.place())


def _hash(shared: Shared, actors: tuple[Actor, ...]) -> int:
    """Return 64 bits of a state: two of a million states are equal once in 10 million searches."""
    return hash((shared.key(), tuple(actor.key() for actor in actors)))
