"""BPF programs of a few instructions, put together where they are loaded.

The compiler process makes the programs that handle packets and nothing else. Small programs, which
belong to a running process and have their own maps, are written out here. The numbers of operations
stand in the kernel's ``linux/bpf_common.h`` and ``linux/bpf.h``.
"""

from __future__ import annotations

import struct
import sys
from typing import Literal

from bpfsvc.base.errors import BpfsvcError

R0, R1, R2, R3, R4, R5, R6 = range(7)
"""R0 is the result of calls and of the program, R1 its context; calls change R0 to R5."""

STACK = 10
"""The register of the end of the stack, which lies below it."""

_SIZES = {4: 0x00, 2: 0x08, 1: 0x10, 8: 0x18}
_LOAD, _STORE = 0x61, 0x63
_LOAD_IMMEDIATE, _MAP = 0x18, 1
_ARITHMETIC = {"=": 0xB7, "+": 0x07, "&": 0x57, "^": 0xA7}
_FROM_REGISTER = 0x08
_IF_UNLIKE, _CALL, _EXIT = 0x55, 0x85, 0x95


def register_byte(to: int, source: int) -> int:
    """Return the byte of an instruction that names its registers."""
    return to | source << 4 if sys.byteorder == "little" else to << 4 | source


class Code:
    """Instructions, one after the other. Jumps go forward, to a ``mark`` of that name."""

    def __init__(self) -> None:
        self._instructions: list[bytes] = []
        self._jumps: list[tuple[int, str]] = []
        self._marks: dict[str, int] = {}

    def load(self, to: int, base: int, offset: int, size: int = 8) -> None:
        """Read ``size`` bytes from memory, in host order."""
        self._add(_LOAD | _SIZES[size], to, base, offset)

    def store(self, base: int, offset: int, source: int, size: int = 8) -> None:
        """Write ``size`` bytes to memory, in host order."""
        self._add(_STORE | _SIZES[size], base, source, offset)

    def write(self, base: int, data: bytes, offset: int = 0) -> None:
        """Write bytes to memory, by way of R5; a multiple of four of them."""
        whole = len(data) - len(data) % 8
        for at in range(0, whole, 8):
            low, high = struct.unpack_from("=ii", data, at)
            if sys.byteorder == "big":
                low, high = high, low
            self._wide(R5, 0, low, high)
            self.store(base, offset + at, R5)
        if len(data) > whole:
            self.calculate(R5, "=", *struct.unpack_from("=i", data, whole))
            self.store(base, offset + whole, R5, 4)

    def map(self, to: int, descriptor: int) -> None:
        """Set a register to a map, given by its descriptor."""
        self._wide(to, _MAP, descriptor, 0)

    def move(self, to: int, source: int) -> None:
        """Copy a register."""
        self._add(_ARITHMETIC["="] | _FROM_REGISTER, to, source)

    def calculate(self, to: int, operation: Literal["=", "+", "&", "^"], value: int) -> None:
        """Set a register to a number of 32 bits, or combine it with one."""
        self._add(_ARITHMETIC[operation], to, value=value)

    def call(self, helper: int) -> None:
        """Call a helper by its number."""
        self._add(_CALL, value=helper)

    def if_unlike(self, left: int, value: int, to: str) -> None:
        """Jump if a register is not a number."""
        self._jump(_IF_UNLIKE, left, 0, value, to)

    def mark(self, name: str) -> None:
        """Name the next instruction as a place to jump to."""
        self._marks[name] = len(self._instructions)

    def leave(self, verdict: int) -> None:
        """End with a verdict."""
        self.calculate(R0, "=", verdict)
        self._add(_EXIT)

    def finish(self) -> bytes:
        """Return the instructions; BpfsvcError if a jump has no mark."""
        made = list(self._instructions)
        for at, name in self._jumps:
            if name not in self._marks:
                raise BpfsvcError(f"no mark {name!r} to jump to")
            distance = struct.pack("=h", self._marks[name] - at - 1)
            made[at] = made[at][:2] + distance + made[at][4:]
        return b"".join(made)

    def _jump(self, operation: int, left: int, right: int, value: int, to: str) -> None:
        self._jumps.append((len(self._instructions), to))
        self._add(operation, left, right, value=value)

    def _wide(self, to: int, kind: int, low: int, high: int) -> None:
        self._add(_LOAD_IMMEDIATE, to, kind, value=low)
        self._add(0, value=high)

    def _add(
        self, operation: int, to: int = 0, source: int = 0, offset: int = 0, value: int = 0
    ) -> None:
        self._instructions.append(
            struct.pack("=BBhi", operation, register_byte(to, source), offset, value)
        )
