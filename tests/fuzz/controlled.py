"""The programs with a clock and random numbers that the caller sets.

Bytecode is changed before it is loaded: a call of a helper that reads a clock, or draws a random
number, becomes a read of memory that the caller shares. All other instructions stay as they are.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import replace

from bpfsvc.datapath.instructions import register_byte
from bpfsvc.datapath.loader.bytecode import INSTRUCTION, Bytecode, Program
from bpfsvc.datapath.loader.creation import create_map
from bpfsvc.datapath.maps.layout import MapLayout, Record

KTIME_GET_NS, PRANDOM_U32, JIFFIES64, KTIME_GET_COARSE_NS = 5, 7, 118, 160
"""Numbers of helpers (``linux/bpf.h``)."""

HZ = 250
"""Jiffies in a second of the caller's clock."""

_CALL, _WIDE = 0x85, 0x18
_MAP_VALUE = 2  # BPF_PSEUDO_MAP_VALUE
_READ, _WRITE = 0x79, 0x7B  # 8 bytes
_TIMES, _PLUS, _SHIFT = 0x27, 0x07, 0x77
_JUMPS = (0x05, 0x06)
_CALL_OPERATION, _EXIT_OPERATION = 0x80, 0x90

FACTOR = 0x5851F42D
"""Of a linear congruential generator of 64 bits: 1 modulo 4, so it has the full period."""
INCREMENT = 0x14057B7F
_SPREAD = 0x9E3779B97F4A7C15

_MMAPABLE = 1 << 10


class Controls:
    """A clock and a generator in memory that this process shares with the programs."""

    def __init__(self) -> None:
        value = Record((("now", "Q"), ("jiffies", "Q"), ("state", "Q")))
        layout = MapLayout("array", Record((("key", "I"),)), value, 1, _MMAPABLE)
        self.fd = create_map("controls", layout)
        self._memory = mmap.mmap(self.fd, mmap.PAGESIZE)
        self._cells = (ctypes.c_uint64 * 3).from_buffer(self._memory)

    def set_time(self, ns: int) -> None:
        """Set the clock, in nanoseconds."""
        self._cells[0] = ns
        self._cells[1] = ns * HZ // 1_000_000_000

    def set_seed(self, seed: int) -> None:
        """Set the state of the generator; small numbers make large ones at once."""
        self._cells[2] = (seed + 1) * _SPREAD & 0xFFFFFFFFFFFFFFFF

    def controlled(self, build: Bytecode) -> Bytecode:
        """Return a build whose programs read this clock and this generator."""
        instead: dict[int, list[bytes]] = {
            KTIME_GET_NS: self._clock(0),
            KTIME_GET_COARSE_NS: self._clock(0),
            JIFFIES64: self._clock(8),
            PRANDOM_U32: self._number(),
        }
        programs = tuple(with_calls_replaced(program, instead) for program in build.programs)
        return replace(build, programs=programs)

    def _address(self, register: int, offset: int) -> list[bytes]:
        return [
            instruction(_WIDE, register, _MAP_VALUE, 0, self.fd),
            instruction(0, 0, 0, 0, offset),
        ]

    def _clock(self, offset: int) -> list[bytes]:
        return [*self._address(0, offset), instruction(_READ, 0, 0, 0, 0)]

    def _number(self) -> list[bytes]:
        return [
            *self._address(1, 16),
            instruction(_READ, 0, 1, 0, 0),
            instruction(_TIMES, 0, 0, 0, FACTOR),
            instruction(_PLUS, 0, 0, 0, INCREMENT),
            instruction(_WRITE, 1, 0, 0, 0),
            instruction(_SHIFT, 0, 0, 0, 32),
        ]


def instruction(operation: int, to: int, source: int, offset: int, number: int) -> bytes:
    """Return one instruction."""
    return struct.pack("=BBhi", operation, register_byte(to, source), offset, number)


def with_calls_replaced(program: Program, instead: dict[int, list[bytes]]) -> Program:
    """Return a program with other instructions in the place of calls of helpers, by their numbers.

    Jumps, calls of subprograms and all noted places follow.
    """
    code = program.code
    count = len(code) // INSTRUCTION
    parsed = [struct.unpack_from("=BBhi", code, at * INSTRUCTION) for at in range(count)]
    replaced: dict[int, list[bytes]] = {}
    starts: list[int] = []
    length, wide = 0, False
    for at, (operation, registers, _, number) in enumerate(parsed):
        starts.append(length)
        if not wide and operation == _CALL and not registers and number in instead:
            replaced[at] = instead[number]
        length += len(replaced.get(at, ("",)))
        wide = not wide and operation == _WIDE
    starts.append(length)
    made: list[bytes] = []
    wide = False
    for at, (operation, registers, offset, number) in enumerate(parsed):
        if at in replaced:
            made += replaced[at]
            continue
        if not wide and operation & 7 in _JUMPS:
            kind = operation & 0xF0
            if kind == _CALL_OPERATION:
                if registers:
                    number = starts[at + number + 1] - starts[at] - 1
            elif kind != _EXIT_OPERATION:
                offset = starts[at + offset + 1] - starts[at] - 1
        made.append(struct.pack("=BBhi", operation, registers, offset, number))
        wide = not wide and operation == _WIDE

    def moved(at: int) -> int:
        return starts[at // INSTRUCTION] * INSTRUCTION + at % INSTRUCTION

    return replace(
        program,
        code=b"".join(made),
        references=tuple((moved(at), name) for at, name in program.references),
        sizes=tuple((moved(at), name) for at, name in program.sizes),
        subprograms=tuple((moved(at), size) for at, size in program.subprograms),
    )
