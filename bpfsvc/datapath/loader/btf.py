"""The types (BTF) that the kernel asks for: of some maps' values, and of subprograms.

Only sizes matter in them. Numbers and layouts are from the kernel's ``linux/btf.h``.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence

from bpfsvc.datapath import syscall

_BTF_LOAD = 18

_INT, _POINTER, _STRUCT, _FUNCTION, _PROTOTYPE = (kind << 24 for kind in (1, 2, 4, 12, 13))
_SIGNED_32_BITS = 1 << 24 | 32
_GLOBAL = 1
"""Of a function: the verifier follows it once for all its callers."""

INT, VALUE = 1, 2
"""The types of :func:`value_types`."""

FUNCTION_INFO = struct.Struct("=II")
"""``struct bpf_func_info``: the first instruction, the type."""


class _Types:
    """Types in the making. The first one is ``int``."""

    def __init__(self) -> None:
        self._names = b"\0"
        self._types: list[bytes] = []
        self.add("int", _INT, 4, struct.pack("=I", _SIGNED_32_BITS))

    def add(self, name: str, kind: int, size_or_type: int, more: bytes = b"") -> int:
        """Append a type; return its number."""
        self._types.append(struct.pack("=III", self.name(name), kind, size_or_type) + more)
        return len(self._types)

    def name(self, text: str) -> int:
        """Append a name; return its place. That of the empty name is 0."""
        if not text:
            return 0
        self._names += text.encode() + b"\0"
        return len(self._names) - len(text) - 1

    def load(self) -> int:
        """Load the types; return a descriptor."""
        types = b"".join(self._types)
        head = struct.pack(
            "=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(self._names)
        )
        blob = head + types + self._names
        data = ctypes.create_string_buffer(blob, len(blob))
        return syscall.call(_BTF_LOAD, struct.pack("=Q8xI8x", ctypes.addressof(data), len(data)))


def value_types(size: int) -> int:
    """Load the types of a key and a value, which storage of sockets must have; return a descriptor.

    The key has to be an ``int``, the value is a struct without members.
    """
    types = _Types()
    types.add("", _STRUCT, size)
    return types.load()


def function_types(arguments: Sequence[int]) -> tuple[int, list[int]]:
    """Load the types of a program, and of subprograms that are handed a pointer to so many bytes.

    Return a descriptor, and the numbers of the types.
    """
    types = _Types()
    program = types.add("", _PROTOTYPE, INT)
    numbers = [types.add("program", _FUNCTION | _GLOBAL, program)]
    for n, size in enumerate(arguments):
        pointer = types.add("", _POINTER, types.add(f"argument_{n}", _STRUCT, size))
        argument = struct.pack("=II", types.name("argument"), pointer)
        prototype = types.add("", _PROTOTYPE | 1, INT, argument)
        numbers.append(types.add(f"subprogram_{n}", _FUNCTION | _GLOBAL, prototype))
    return types.load(), numbers
