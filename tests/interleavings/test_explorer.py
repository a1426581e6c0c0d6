"""The search leaves out no end: it sees those that all orders of a few accesses lead to."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.interleavings.actors import Actor
from tests.interleavings.explorer import explore
from tests.interleavings.helpers import KernelHelpers
from tests.interleavings.machine import Machine
from tests.interleavings.shared import Location, Shared, Tables

Script = tuple[tuple[bool, int], ...]
"""Accesses: whether it writes, and the row."""

Ends = set[tuple[object, ...]]


@dataclass(slots=True)
class Scripted(Actor):
    """Reads and writes rows; the outcome is what it has read."""

    script: Script = ()
    at: int = 0
    read: tuple[bytes, ...] = ()

    def copy(self) -> Scripted:
        return Scripted(self.name, self.outcome, self.script, self.at, self.read)

    def key(self) -> tuple[object, ...]:
        return (self.at, self.read)

    def place(self) -> tuple[object, ...]:
        return (self.at,)

    def step(self, machine: Machine, shared: Shared) -> None:
        writes, row = self.script[self.at]
        touched: list[Location] = [("row", row)]
        reads, written = ([], touched) if writes else (touched, [])
        machine.accesses.append((self.name, self.at, reads, written))
        if writes:
            shared.rows[row] = f"{self.name}{self.at}".encode()
        else:
            self.read = (*self.read, shared.rows.get(row, b""))
        self.at += 1
        if self.at == len(self.script):
            self.outcome = ("done", *self.read)


def _end(shared: Shared, actors: tuple[Actor, ...]) -> tuple[object, ...]:
    return (tuple(sorted(shared.rows.items())), *(actor.outcome for actor in actors))


def _all_ends(machine: Machine, shared: Shared, actors: tuple[Actor, ...]) -> Iterator[object]:
    """Yield the ends of all orders, one order after the other."""
    if all(actor.outcome for actor in actors):
        yield _end(shared, actors)
    for number, actor in enumerate(actors):
        if not actor.outcome:
            then, acting = shared.copy(), actor.copy()
            acting.step(machine, then)
            yield from _all_ends(machine, then, (*actors[:number], acting, *actors[number + 1 :]))


@pytest.mark.parametrize("seed", range(60))
def test_the_ends_are_those_of_all_orders(seed: int) -> None:
    chance = random.Random(seed)
    machine = Machine({}, KernelHelpers(()))
    shared = Shared(Tables((), (), {}, {}, {}))
    actors = tuple(
        Scripted(
            name,
            script=tuple(
                (chance.random() < 0.5, chance.randrange(4)) for _ in range(chance.randint(1, 4))
            ),
        )
        for name in "abc"
    )
    ends: Ends = set()

    def note(shared: Shared, acting: tuple[Actor, ...]) -> str:
        ends.add(_end(shared, acting))
        return ""

    explored = explore(machine, shared, actors, note)
    assert ends == set(_all_ends(machine, shared, actors))
    assert explored.ends == len(ends)


def test_what_nobody_else_accesses_has_a_single_order() -> None:
    machine = Machine({}, KernelHelpers(()))
    shared = Shared(Tables((), (), {}, {}, {}))
    own = [
        Scripted(name, script=tuple((True, 10 * number + row) for row in range(5)))
        for number, name in enumerate("abc")
    ]
    alone = explore(machine, shared, own, lambda *_: "")
    assert (alone.states, alone.ends) == (16, 1)
    together = [actor.copy() for actor in own]
    together[2].script = ((True, 0), *together[2].script)
    assert 16 < explore(machine, shared, together, lambda *_: "").states < 6 * 6 * 7
