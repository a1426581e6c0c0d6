"""Who acts at the same time: packets on their way, the connection GC, the control plane."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tests.fuzz.controlled import _SPREAD
from tests.interleavings.instructions import M64
from tests.interleavings.machine import Machine, Run
from tests.interleavings.node import Write
from tests.interleavings.shared import ANY, Location, Shared, words

UNSPEC, SHOT = 0xFFFFFFFF, 2
INTERFACE = 1


@dataclass(slots=True)
class Actor:
    """Somebody who acts in steps. ``outcome``: what came of it; empty before the end."""

    name: str
    outcome: tuple[object, ...] = ()

    def copy(self) -> Actor:
        raise NotImplementedError

    def key(self) -> tuple[object, ...]:
        """Return what is equal for equal states."""
        raise NotImplementedError

    def place(self) -> tuple[object, ...]:
        """Return where the actor is in what it does."""
        raise NotImplementedError

    def step(self, machine: Machine, shared: Shared) -> None:
        """Do the next access that others can see, and all until the one after it."""
        raise NotImplementedError


@dataclass(slots=True)
class PacketActor(Actor):
    """A packet passes ingress and egress, on a CPU of its own.

    The outcome is what became of it, and its frame then.
    """

    frame: bytes = b""
    now: int = 0
    stage: int = 0
    run: Run = field(default_factory=Run)

    def copy(self) -> PacketActor:
        return PacketActor(
            self.name, self.outcome, self.frame, self.now, self.stage, self.run.copy()
        )

    def key(self) -> tuple[object, ...]:
        if self.outcome:
            return self.outcome
        return (self.stage, *self.run.key())

    def place(self) -> tuple[object, ...]:
        return (self.stage, *self.run.place(), bool(self.outcome))

    def step(self, machine: Machine, shared: Shared) -> None:
        machine.visible_left = 1
        if not self.stage:
            self.run.now, self.run.random = self.now, _SPREAD
            self.run.begin("ingress", self.frame, INTERFACE, INTERFACE, 0)
            self.stage = 1
        while not self.outcome:
            machine.go_on(shared, self.run)
            verdict = self.run.verdict
            if verdict is None:
                return
            place = ("at ingress", "at egress")[self.stage - 1]
            if verdict == SHOT:
                self.outcome = f"is dropped {place}", b""
            elif verdict != UNSPEC:
                self.outcome = f"is sent back {place}", self.run.frame
            elif self.stage == 2:
                self.outcome = "leaves", self.run.frame
            else:
                self.stage = 2
                self.run.begin("egress", self.run.frame, INTERFACE, INTERFACE, self.run.mark)


_REQUEST = struct.Struct("=14xBBBBBBBBH")
_CLOSED = 1


@dataclass(slots=True)
class Sweep(Actor):
    """The connection GC: it is asked to remove flows if they are over, or ``force``.

    ``is_of_queue``: those that the programs have put into the queue of closed connections.
    """

    flows: tuple[bytes, ...] = ()
    force: bool = False
    is_of_queue: bool = False
    now: int = 0
    is_begun: bool = False
    run: Run = field(default_factory=Run)

    def copy(self) -> Sweep:
        return Sweep(
            self.name,
            self.outcome,
            *(self.flows, self.force, self.is_of_queue, self.now, self.is_begun),
            self.run.copy(),
        )

    def key(self) -> tuple[object, ...]:
        return self.outcome or (self.is_begun, *self.run.key())

    def place(self) -> tuple[object, ...]:
        return (self.is_begun, *self.run.place(), bool(self.outcome))

    def step(self, machine: Machine, shared: Shared) -> None:
        machine.visible_left = 1
        if not self.is_begun:
            self.is_begun = True
            source = _CLOSED if self.is_of_queue else 0
            header = _REQUEST.pack(len(self.flows), self.force, 0, 0, 0, source, 0, 0, 0)
            self.run.now = self.now
            self.run.begin("gc", header + b"".join(self.flows), INTERFACE, 0, 0)
        machine.go_on(shared, self.run)
        if self.run.verdict is not None:
            self.outcome = "removed", self.run.verdict


@dataclass(slots=True)
class Writes(Actor):
    """Writes to maps one after the other: of the control plane, or evictions of the kernel."""

    writes: tuple[Write, ...] = ()
    at: int = 0

    def copy(self) -> Writes:
        return Writes(self.name, self.outcome, self.writes, self.at)

    def key(self) -> tuple[object, ...]:
        return (self.at,)

    def place(self) -> tuple[object, ...]:
        return (self.at,)

    def step(self, machine: Machine, shared: Shared) -> None:
        name, key, value = self.writes[self.at]
        table = shared.tables.number(name)
        row = shared.find(table, key)
        if shared.tables.layouts[table].type == "array":
            touched: list[Location] = list(words(row >> 0, 0, len(value or b"")))
        else:
            touched = [(table, key), ("rows", table)]
        machine.accesses.append((self.name, self.at, [], touched))
        if value is None:
            shared.delete(table, key)
        else:
            shared.put(table, key, value, ANY)
        self.at += 1
        if self.at == len(self.writes):
            self.outcome = ("written",)


def generator_state(seed: int) -> int:
    """Return a state of the generator, as ``Controls.set_seed`` makes it."""
    return (seed + 1) * _SPREAD & M64
