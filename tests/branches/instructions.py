"""Instructions of programs as values: what they read and write, and where they go on.

Numbers are from ``linux/bpf_common.h`` and ``linux/bpf.h``.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

from bpfsvc.datapath.instructions import register_byte
from bpfsvc.datapath.loader.bytecode import INSTRUCTION

WIDE, JUMP, STORE_BYTE, STORE_8, READ_8 = 0x18, 0x05, 0x72, 0x7B, 0x79
MAP_VALUE = 2
"""BPF_PSEUDO_MAP_VALUE: the number of the register says that the constant is memory of a map."""

STACK = 10
_LD, _LDX, _ST, _STX, _ALU32, _JMP64, _JMP32, _ALU64 = range(8)
_ALWAYS, _CALL, _EXIT = 0x00, 0x80, 0x90
_MOVE, _NEGATE, _SWAP_BYTES = 0xB0, 0x80, 0xD0
_FROM_REGISTER, _ATOMIC, _FETCH, _COMPARE_AND_SWAP = 0x08, 0xC0, 0x01, 0xF1
_ARGUMENTS = 0b111110


class Instruction(NamedTuple):
    """One instruction; ``second``: the other half of a constant of 64 bits."""

    operation: int
    to: int
    source: int
    offset: int
    number: int
    second: bool = False

    @property
    def kind(self) -> int:
        return self.operation & 7

    @property
    def jumps(self) -> bool:
        """True if it is a jump, a call or an exit."""
        return not self.second and self.kind in (_JMP64, _JMP32)

    @property
    def is_call(self) -> bool:
        return self.jumps and self.operation & 0xF0 == _CALL

    @property
    def is_subprogram_call(self) -> bool:
        return self.is_call and self.source == 1

    @property
    def is_exit(self) -> bool:
        return self.jumps and self.operation & 0xF0 == _EXIT

    @property
    def has_target(self) -> bool:
        """True if its offset says where it goes on."""
        return self.jumps and not self.is_call and not self.is_exit

    @property
    def is_branch(self) -> bool:
        """True if it goes on at one of two places."""
        return self.has_target and self.operation & 0xF0 != _ALWAYS

    def encode(self) -> bytes:
        return struct.pack(
            "=BBhi", self.operation, register_byte(self.to, self.source), self.offset, self.number
        )


def decode(code: bytes) -> list[Instruction]:
    """Return the instructions of a program."""
    little = sys.byteorder == "little"
    decoded: list[Instruction] = []
    second = False
    for operation, registers, offset, number in struct.iter_unpack("=BBhi", code):
        low, high = registers & 15, registers >> 4
        to, source = (low, high) if little else (high, low)
        decoded.append(Instruction(operation, to, source, offset, number, second))
        second = not second and operation == WIDE
    assert len(decoded) * INSTRUCTION == len(code)
    return decoded


def branches(code: Sequence[Instruction]) -> list[int]:
    """Return where the conditional jumps are."""
    return [at for at, instruction in enumerate(code) if instruction.is_branch]


def reads_and_writes(instruction: Instruction) -> tuple[int, int]:
    """Return the registers that it reads and those that it writes, each as a set of bits.

    A call may read all arguments: how many there are depends on the helper.
    """
    to, source = 1 << instruction.to, 1 << instruction.source
    kind, operation = instruction.kind, instruction.operation
    if instruction.second:
        return 0, 0
    if kind == _LD:
        if operation == WIDE:
            return 0, to
        return source | 1 << 6, 1 | _ARGUMENTS
    if kind == _LDX:
        return source, to
    if kind == _ST:
        return to, 0
    if kind == _STX:
        return _store_from_register(instruction, to, source)
    if instruction.jumps:
        return _jump(instruction, to, source)
    code = operation & 0xF0
    if code in (_NEGATE, _SWAP_BYTES):
        return to, to
    read = source if operation & _FROM_REGISTER else 0
    return read if code == _MOVE else read | to, to


def _store_from_register(instruction: Instruction, to: int, source: int) -> tuple[int, int]:
    if instruction.operation & 0xE0 != _ATOMIC:
        return to | source, 0
    if instruction.number == _COMPARE_AND_SWAP:
        return to | source | 1, 1
    return to | source, source if instruction.number & _FETCH else 0


def _jump(instruction: Instruction, to: int, source: int) -> tuple[int, int]:
    if instruction.is_call:
        return _ARGUMENTS, 1 | _ARGUMENTS
    if instruction.is_exit:
        return 1, 0
    if not instruction.is_branch:
        return 0, 0
    return to | (source if instruction.operation & _FROM_REGISTER else 0), 0


def live_registers(code: Sequence[Instruction]) -> list[int]:
    """Return for each instruction which registers are read later, as they are before it."""
    effects = [reads_and_writes(instruction) for instruction in code]
    live = [0] * (len(code) + 1)
    changed = True
    while changed:
        changed = False
        for at in range(len(code) - 1, -1, -1):
            instruction = code[at]
            after = 0 if instruction.is_exit else live[at + 1]
            if instruction.has_target:
                target = live[at + 1 + instruction.offset]
                after = after | target if instruction.is_branch else target
            read, written = effects[at]
            before = read | after & ~written
            if before != live[at]:
                live[at] = before
                changed = True
    return live
