"""Instructions of BPF, each as a function of the registers (``linux/bpf.h``)."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

M64, M32 = (1 << 64) - 1, (1 << 32) - 1

Registers = list[int]
COMPUTE, JUMP, LOAD, STORE, ATOMIC, CALL, EXIT = range(7)
"""Kinds of instructions."""

SUBPROGRAM = -1
"""The call of a subprogram, in the place of a helper's number."""


class Instruction(NamedTuple):
    """One instruction. What the fields are depends on ``kind``.

    * COMPUTE: ``change`` of the registers. JUMP: to ``next`` if ``holds``, else it goes on.
    * LOAD, STORE, ATOMIC: ``size`` bytes of memory at a register (``base``) plus ``offset``, to or
      from the register ``register``, or of ``number`` if that is None.
    * CALL: the helper ``number``; SUBPROGRAM: it begins at ``next``.
    """

    kind: int
    next: int
    change: Callable[[Registers], None] | None = None
    holds: Callable[[Registers], bool] | None = None
    base: int = 0
    offset: int = 0
    size: int = 0
    register: int | None = None
    number: int = 0


_SIZES = {0x00: 4, 0x08: 2, 0x10: 1, 0x18: 8}
_ALU: dict[int, Callable[[int, int], int]] = {
    **{0x00: operator.add, 0x10: operator.sub, 0x20: operator.mul, 0x40: operator.or_},
    **{0x50: operator.and_, 0xA0: operator.xor, 0xB0: lambda _, source: source},
    0x30: lambda to, source: to // source if source else 0,
    0x90: lambda to, source: to % source if source else to,
}
_COMPARISONS: dict[int, Callable[[int, int], bool]] = {
    **{0x10: operator.eq, 0x20: operator.gt, 0x30: operator.ge, 0x50: operator.ne},
    **{0xA0: operator.lt, 0xB0: operator.le},
    0x40: lambda to, source: bool(to & source),
    0x60: lambda to, source: signed(to) > signed(source),
    0x70: lambda to, source: signed(to) >= signed(source),
    0xC0: lambda to, source: signed(to) < signed(source),
    0xD0: lambda to, source: signed(to) <= signed(source),
}


def signed(number: int, bits: int = 64) -> int:
    """Return a register as a signed number."""
    return number - (1 << bits) if number >> (bits - 1) else number


def decoded(code: bytes) -> list[Instruction]:
    """Return the instructions of a program; the second half of a wide one is never reached."""
    made: list[Instruction] = []
    wide = 0
    for at in range(len(code) // 8):
        fields = struct.unpack_from("=BBhi", code, at * 8)
        if wide:
            wide = 0
            made.append(Instruction(EXIT, at))
        elif fields[0] == 0x18:
            low, high = (struct.unpack_from("=I", code, (at + n) * 8 + 4)[0] for n in (0, 1))
            made.append(_set(at + 2, fields[1] & 15, low | high << 32, fields[1] >> 4))
            wide = 1
        else:
            made.append(_decoded(at, *fields))
    return made


def _set(after: int, to: int, number: int, kind: int) -> Instruction:
    assert kind in (0, 1), "a value of a map, or a function"
    # A descriptor is the number of the map, see shared.py.
    value = (0x20000000 | number) << 32 if kind else number

    def change(registers: Registers) -> None:
        registers[to] = value

    return Instruction(COMPUTE, after, change)


def _decoded(at: int, operation: int, registers: int, offset: int, number: int) -> Instruction:
    to, source = registers & 15, registers >> 4
    kind, size = operation & 7, _SIZES[operation & 0x18]
    memory: dict[str, Any] = {"offset": offset, "size": size}
    if kind == 1:
        return Instruction(LOAD, at + 1, base=source, register=to, **memory)
    if kind == 2:
        return Instruction(STORE, at + 1, base=to, number=number, **memory)
    if kind == 3 and operation & 0xE0 == 0xC0:
        return Instruction(ATOMIC, at + 1, base=to, register=source, number=number, **memory)
    if kind == 3:
        return Instruction(STORE, at + 1, base=to, register=source, **memory)
    if kind in (4, 7):
        return Instruction(COMPUTE, at + 1, _alu(operation, to, source, number))
    if operation == 0x85:
        if source:
            return Instruction(CALL, at + 1 + number, number=SUBPROGRAM)
        return Instruction(CALL, at + 1, number=number)
    if operation == 0x95:
        return Instruction(EXIT, at)
    if operation == 0x05:
        return Instruction(JUMP, at + 1 + offset, holds=lambda _: True)
    return Instruction(JUMP, at + 1 + offset, holds=_comparison(operation, to, source, number))


def _alu(operation: int, to: int, source: int, number: int) -> Callable[[Registers], None]:
    mask = M64 if operation & 7 == 7 else M32
    bits = 64 if mask == M64 else 32
    code = operation & 0xF0
    if code == 0xD0:
        return _swap(to, number, big=bool(operation & 8))
    if code == 0x80:
        return lambda registers: registers.__setitem__(to, -registers[to] & mask)
    shifts: dict[int, Callable[[int, int], int]] = {
        0x60: lambda value, by: value << (by & bits - 1),
        0x70: lambda value, by: value >> (by & bits - 1),
        0xC0: lambda value, by: signed(value, bits) >> (by & bits - 1),
    }
    compute = shifts.get(code) or _ALU[code]
    if operation & 8:

        def by_register(registers: Registers) -> None:
            registers[to] = compute(registers[to] & mask, registers[source] & mask) & mask

        return by_register
    constant = number & mask

    def by_number(registers: Registers) -> None:
        registers[to] = compute(registers[to] & mask, constant) & mask

    return by_number


def _swap(to: int, bits: int, big: bool) -> Callable[[Registers], None]:
    size = bits // 8

    def change(registers: Registers) -> None:
        value = registers[to] & (1 << bits) - 1
        if big:
            value = int.from_bytes(value.to_bytes(size, "little"), "big")
        registers[to] = value

    return change


def _comparison(operation: int, to: int, source: int, number: int) -> Callable[[Registers], bool]:
    assert operation & 7 == 5, "a jump that compares 32 bits"
    compare = _COMPARISONS[operation & 0xF0]
    if operation & 8:
        return lambda registers: compare(registers[to], registers[source])
    constant = number & M64
    return lambda registers: compare(registers[to], constant)
