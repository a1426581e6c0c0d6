"""Programs that note which way each of their conditional jumps went.

Bytecode is changed before it is loaded. Behind each conditional jump stands a write of one byte of
a map's memory, and the jump itself goes to another such write, at the end of its function, which
goes on where the jump went. A write needs a register that nothing reads afterwards. Where all of
them are in use, one is put on the stack meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bpfsvc.datapath.loader.bytecode import INSTRUCTION
from tests.branches.instructions import (
    JUMP,
    MAP_VALUE,
    READ_8,
    STACK,
    STORE_8,
    STORE_BYTE,
    WIDE,
    Instruction,
    branches,
    decode,
    live_registers,
)

_USABLE = range(10)
_ROOM = 512
"""Bytes of stack that a program has, together with a subprogram that it calls."""

Subprograms = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """A program with marks. ``left_out``: how many outcomes have none, for want of a register."""

    code: bytes
    subprograms: Subprograms
    left_out: int


class _Marker:
    """Makes the instructions that mark an outcome."""

    def __init__(self, descriptor: int, slot: int) -> None:
        self._descriptor = descriptor
        self._slot = slot
        self.left_out = 0

    def mark(self, live: int, outcome: int) -> list[Instruction]:
        register = next((number for number in _USABLE if not live >> number & 1), None)
        if register is not None:
            return self._write(register, outcome)
        if not self._slot:
            self.left_out += 1
            return []
        return [
            Instruction(STORE_8, STACK, 0, self._slot, 0),
            *self._write(0, outcome),
            Instruction(READ_8, 0, STACK, self._slot, 0),
        ]

    def _write(self, register: int, outcome: int) -> list[Instruction]:
        return [
            Instruction(WIDE, register, MAP_VALUE, 0, self._descriptor),
            Instruction(0, 0, 0, 0, outcome, second=True),
            Instruction(STORE_BYTE, register, 0, 0, 1),
        ]


def with_marks(
    code: bytes,
    subprograms: Subprograms,
    descriptor: int,
    first: int,
) -> Marked:
    """Return a program that marks outcomes in the map of this descriptor.

    Branch n of the program has the bytes ``first + 2 * n``, not taken, and the next, taken.
    """
    instructions = decode(code)
    starts = [0, *(at // INSTRUCTION for at, _ in subprograms), len(instructions)]
    marker = _Marker(descriptor, _free_slot(instructions, starts))
    made: list[Instruction] = []
    moved: dict[int, int] = {}
    calls: list[tuple[int, int]] = []
    branch = 0
    for begin, end in pairwise(starts):
        function = instructions[begin:end]
        numbers = {at: branch + n for n, at in enumerate(branches(function))}
        branch += len(numbers)
        moved[begin] = len(made)
        body, called = _function(function, numbers, marker, first)
        calls += [(len(made) + at, begin + target) for at, target in called]
        made += body
    for at, target in calls:
        made[at] = made[at]._replace(number=moved[target] - at - 1)
    return Marked(
        b"".join(instruction.encode() for instruction in made),
        tuple((moved[at // INSTRUCTION] * INSTRUCTION, size) for at, size in subprograms),
        marker.left_out,
    )


def _function(
    code: Sequence[Instruction],
    numbers: dict[int, int],
    marker: _Marker,
    first: int,
) -> tuple[list[Instruction], list[tuple[int, int]]]:
    """Return a function with marks, and its calls of subprograms: where, and what they call."""
    live = live_registers(code)
    made: list[Instruction] = []
    starts: list[int] = []
    jumps: list[tuple[int, int]] = []
    calls: list[tuple[int, int]] = []
    detours: list[tuple[int, int, int]] = []
    for at, instruction in enumerate(code):
        starts.append(len(made))
        made.append(instruction)
        if instruction.is_subprogram_call:
            calls.append((starts[at], at + 1 + instruction.number))
        if not instruction.has_target:
            continue
        target = at + 1 + instruction.offset
        if instruction.is_branch:
            outcome = first + 2 * numbers[at]
            made += marker.mark(live[at + 1], outcome)
            detours.append((starts[at], target, outcome + 1))
        else:
            jumps.append((starts[at], target))
    for jump, target, outcome in detours:
        made[jump] = made[jump]._replace(offset=len(made) - jump - 1)
        made += marker.mark(live[target], outcome)
        jumps.append((len(made), target))
        made.append(Instruction(JUMP, 0, 0, 0, 0))
    for jump, target in jumps:
        made[jump] = made[jump]._replace(offset=starts[target] - jump - 1)
    return made, calls


def _free_slot(code: Sequence[Instruction], starts: Sequence[int]) -> int:
    """Return the offset of 8 bytes of the stack that no function uses; 0 if there are none."""
    depths = [_depth(code[begin:end]) for begin, end in pairwise(starts)]
    lowest = max(depths)
    own = lowest + -lowest % 8 + 8
    # The kernel rounds the stack of each function up to 32 bytes.
    together = own + -own % 32 + (own + -own % 32 if len(depths) > 1 else 0)
    return -own if together <= _ROOM else 0


def _depth(code: Sequence[Instruction]) -> int:
    """Return how many bytes of the stack a function uses: the lowest of all its addresses."""
    lowest = 0
    for at, instruction in enumerate(code):
        if instruction.second or instruction.jumps:
            continue
        stores, loads = instruction.kind in (2, 3), instruction.kind == 1
        if (stores and instruction.to == STACK) or (loads and instruction.source == STACK):
            lowest = min(lowest, instruction.offset)
        elif instruction.operation == 0x07 and at:
            before = code[at - 1]
            if before.operation == 0xBF and before.source == STACK:
                lowest = min(lowest, instruction.number)
    return -lowest


def marked_outcomes(code: bytes, map_id: int) -> set[int]:
    """Return the outcomes that still have marks in a program as the kernel has it.

    The verifier removes what it has proved to be out of reach. ``map_id``: what the kernel shows in
    place of a descriptor.
    """
    instructions = decode(code)
    return {
        instructions[at + 1].number
        for at, instruction in enumerate(instructions)
        if instruction.operation == WIDE
        and not instruction.second
        and instruction.source == MAP_VALUE
        and instruction.number == map_id
    }
