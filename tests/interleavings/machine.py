"""One CPU that interprets the programs, from one access to shared memory to the next."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.interleavings.instructions import (
    ATOMIC,
    CALL,
    COMPUTE,
    EXIT,
    JUMP,
    LOAD,
    M64,
    STORE,
    SUBPROGRAM,
    Instruction,
)
from tests.interleavings.shared import SHARED, Location, Shared, words

STACK, CONTEXT, DATA = 1, 8, 9
"""Upper halves of addresses: the first stack, ``struct __sk_buff``, the packet."""
STACK_SIZE = 512

LENGTH, PACKET_TYPE, MARK, PROTOCOL, CAME_BY, INTERFACE = 0, 4, 8, 16, 36, 40
DATA_START, DATA_END, CONTEXT_SIZE = 76, 80, 192
_OTHER_HOST = 3

Programs = Mapping[str, list[Instruction]]
Access = tuple[str, int, list[Location], list[Location]]
"""Program, instruction; what is read and what is written."""


@dataclass(slots=True)
class Run:
    """A program that runs: all that no other CPU sees. ``calls``: where subprograms return to."""

    program: str = ""
    at: int = 0
    registers: list[int] = field(default_factory=lambda: [0] * 11)
    calls: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    memory: dict[int, bytearray] = field(default_factory=dict)
    now: int = 0
    random: int = 0
    verdict: int | None = None

    def copy(self) -> Run:
        """Return a copy that can go on by itself."""
        memory = {region: bytearray(data) for region, data in self.memory.items()}
        return Run(
            *(self.program, self.at, list(self.registers), list(self.calls), memory),
            *(self.now, self.random, self.verdict),
        )

    def key(self) -> tuple[object, ...]:
        """Return what is equal for equal runs."""
        memory = tuple((region, bytes(self.memory[region])) for region in sorted(self.memory))
        return (self.program, self.at, *self.registers, *self.calls, memory, self.verdict)

    def place(self) -> tuple[object, ...]:
        """Return where the run is: its program, its instruction and those it returns to."""
        return (self.program, self.at, *(at for at, _ in self.calls))

    def begin(self, program: str, frame: bytes, interface: int, came_by: int, mark: int) -> None:
        """Begin a program on a packet."""
        context = bytearray(CONTEXT_SIZE)
        values = ((PACKET_TYPE, _OTHER_HOST), (MARK, mark), (CAME_BY, came_by))
        for offset, value in (*values, (INTERFACE, interface)):
            struct.pack_into("=I", context, offset, value)
        context[PROTOCOL : PROTOCOL + 2] = frame[12:14]
        kept = {region: data for region, data in self.memory.items() if region > DATA}
        self.memory = {
            **{STACK: bytearray(STACK_SIZE), CONTEXT: context, DATA: bytearray(frame)},
            **kept,
        }
        self.program, self.at, self.calls, self.verdict = program, 0, [], None
        self.registers = [0] * 11
        self.registers[1], self.registers[10] = CONTEXT << 32, (STACK << 32) + STACK_SIZE

    def jump(self, program: str) -> None:
        """Go on with another program, by a tail call."""
        self.program, self.at, self.calls = program, 0, []
        self.memory[STACK] = bytearray(STACK_SIZE)
        self.registers[1], self.registers[10] = CONTEXT << 32, (STACK << 32) + STACK_SIZE

    @property
    def frame(self) -> bytes:
        """The packet as it is now."""
        return bytes(self.memory[DATA])

    @property
    def mark(self) -> int:
        return int(struct.unpack_from("=I", self.memory[CONTEXT], MARK)[0])


class Machine:
    """Runs programs on shared maps. ``helpers``: what each helper does, and accesses.

    ``visible``: at these locations a run waits, so that others may go on before. ``accesses`` has
    what was read and written since it was emptied.
    """

    def __init__(self, programs: Programs, helpers: Helpers) -> None:
        self._programs = programs
        self._helpers = helpers
        self.visible: set[Location] = set()
        self.visible_left = 0
        self.accesses: list[Access] = []
        self.shared: Shared
        self.run: Run
        self.instructions = 0

    def go_on(self, shared: Shared, run: Run) -> None:
        """Interpret until the end, or until a visible access when none is left of ``visible_left``.

        A run that waits has no verdict yet.
        """
        self.shared, self.run = shared, run
        while run.verdict is None:
            instruction = self._programs[run.program][run.at]
            self.instructions += 1
            kind = instruction.kind
            if kind == COMPUTE:
                assert instruction.change
                instruction.change(run.registers)
                run.at = instruction.next
            elif kind == JUMP:
                assert instruction.holds
                run.at = instruction.next if instruction.holds(run.registers) else run.at + 1
            elif kind == EXIT:
                self._exit()
            else:
                reads, writes = self._accessed(instruction)
                if reads or writes:
                    if not self.visible.isdisjoint((*reads, *writes)):
                        if not self.visible_left:
                            return
                        self.visible_left -= 1
                    self.accesses.append((run.program, run.at, reads, writes))
                self._access(instruction)

    def _exit(self) -> None:
        run = self.run
        if not run.calls:
            run.verdict = run.registers[0] & 0xFFFFFFFF
            return
        run.at, kept = run.calls.pop()
        run.registers[6:11] = kept

    def _accessed(self, instruction: Instruction) -> tuple[list[Location], list[Location]]:
        """Return what an instruction reads and writes of shared memory."""
        run = self.run
        if instruction.kind == CALL:
            if instruction.number == SUBPROGRAM:
                return [], []
            return self._helpers.accessed(self, instruction.number)
        address = run.registers[instruction.base] + instruction.offset & M64
        if address >> 32 < SHARED:
            return [], []
        touched = list(words(address >> 32, address & 0xFFFFFFFF, instruction.size))
        return ([] if instruction.kind == STORE else touched), (
            [] if instruction.kind == LOAD else touched
        )

    def _access(self, instruction: Instruction) -> None:
        run, registers = self.run, self.run.registers
        address = registers[instruction.base] + instruction.offset & M64
        size = instruction.size
        if instruction.kind == CALL:
            self._call(instruction)
            return
        if instruction.kind == LOAD:
            assert instruction.register is not None
            registers[instruction.register] = self._load(address, size)
        elif instruction.kind == STORE:
            register = instruction.register
            value = instruction.number if register is None else registers[register]
            self.write(address, (value & (1 << 8 * size) - 1).to_bytes(size, "little"))
        else:
            assert instruction.kind == ATOMIC
            self._atomic(instruction, address, size)
        run.at = instruction.next

    def _atomic(self, instruction: Instruction, address: int, size: int) -> None:
        register, registers = instruction.register or 0, self.run.registers
        old, operand = self._load(address, size), registers[register]
        operation = instruction.number & 0xF0
        if operation == 0xF0:
            new = operand if old == registers[0] else old
            registers[0] = old
        else:
            new = _ATOMIC[operation](old, operand)
            if instruction.number & 1:
                registers[register] = old
        self.write(address, (new & (1 << 8 * size) - 1).to_bytes(size, "little"))

    def _call(self, instruction: Instruction) -> None:
        run = self.run
        if instruction.number == SUBPROGRAM:
            run.calls.append((run.at + 1, tuple(run.registers[6:11])))
            stack = STACK + len(run.calls)
            run.memory[stack] = bytearray(STACK_SIZE)
            run.registers[10] = (stack << 32) + STACK_SIZE
            run.at = instruction.next
            return
        program, at = run.program, run.at
        result = self._helpers.call(self, instruction.number)
        if (run.program, run.at) == (program, at):
            run.registers[0] = result & M64
            run.at = instruction.next

    def _load(self, address: int, size: int) -> int:
        region, offset = address >> 32, address & 0xFFFFFFFF
        if region == CONTEXT:
            data = self.run.memory[DATA]
            special = {
                LENGTH: len(data),
                DATA_START: DATA << 32,
                DATA_END: (DATA << 32) + len(data),
            }
            if offset in special:
                return special[offset]
        return int.from_bytes(self.read(address, size), "little")

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of memory."""
        region, offset = address >> 32, address & 0xFFFFFFFF
        data = self.shared.row(region) if region >= SHARED else self.run.memory[region]
        assert offset + size <= len(data), "a read beyond memory"
        return bytes(data[offset : offset + size])

    def write(self, address: int, data: bytes) -> None:
        """Write bytes of memory."""
        region, offset = address >> 32, address & 0xFFFFFFFF
        if region >= SHARED:
            self.shared.write(region, offset, data)
        else:
            memory = self.run.memory[region]
            assert offset + len(data) <= len(memory), "a write beyond memory"
            memory[offset : offset + len(data)] = data


_ATOMIC: dict[int, Callable[[int, int], int]] = {
    0x00: lambda old, operand: old + operand,
    0x40: lambda old, operand: old | operand,
    0x50: lambda old, operand: old & operand,
    0xA0: lambda old, operand: old ^ operand,
    0xE0: lambda _, operand: operand,
}


class Helpers:
    """What the machine asks of helpers of the kernel."""

    def accessed(self, machine: Machine, number: int) -> tuple[list[Location], list[Location]]:
        """Return what a helper will read and write of shared memory."""
        raise NotImplementedError

    def call(self, machine: Machine, number: int) -> int:
        """Do what a helper does; return its result."""
        raise NotImplementedError


def both(*parts: Iterable[Location]) -> list[Location]:
    """Return locations as one list."""
    return [location for part in parts for location in part]
