"""The bpf(2) calls that make things: maps, programs, and the types that one kind of map asks for.

Only loading a build needs them. Layouts and numbers are from the kernel's ``linux/bpf.h``.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bpfsvc.datapath import syscall
from bpfsvc.datapath.kernel_names import LENGTH
from bpfsvc.datapath.loader import btf
from bpfsvc.datapath.loader.bytecode import INSTRUCTION
from bpfsvc.datapath.maps.layout import MapLayout

_TYPE_NUMBERS = {name: number for number, name in syscall.TYPE_NAMES.items()}

_TRIES = 5
"""The verifier gives up with EAGAIN when a signal is due; its handler then runs."""


def create_map(name: str, layout: MapLayout) -> int:
    """Make the empty map ``name``; return its descriptor."""
    kind = _TYPE_NUMBERS.get(layout.type) or int(layout.type)
    types = btf.value_types(layout.value.size) if layout.type == "sk_storage" else None
    try:
        attributes = struct.pack(
            "=IIIII8x16s4xIII",
            kind,
            layout.key.size,
            layout.value.size,
            layout.max_entries,
            layout.flags,
            name.encode()[:LENGTH],
            *((0, 0, 0) if types is None else (types, btf.INT, btf.VALUE)),
        )
        return syscall.create(syscall.MAP_CREATE, attributes)
    finally:
        if types is not None:
            os.close(types)


def load_program(
    name: str,
    kind: int,
    attach_type: int,
    code: bytes,
    license_text: str,
    subprograms: Sequence[tuple[int, int]] = (),
) -> int:
    """Load the program ``name``; return its descriptor. Other threads run while it is verified.

    ``subprograms``: see ``bytecode.Program``.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    terms = ctypes.create_string_buffer(license_text.encode())
    with subprogram_types(subprograms) as functions:
        attributes = struct.pack(
            "=IIQQ24x16s4xI",
            kind,
            len(code) // INSTRUCTION,
            ctypes.addressof(instructions),
            ctypes.addressof(terms),
            name.encode()[:LENGTH],
            attach_type,
        )
        for _ in range(_TRIES - 1):
            try:
                return syscall.create(syscall.PROG_LOAD, attributes + functions)
            except BlockingIOError:
                continue
        return syscall.create(syscall.PROG_LOAD, attributes + functions)


@contextmanager
def subprogram_types(subprograms: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """The attributes that say where functions begin and what they are handed; empty without."""
    if not subprograms:
        yield b""
        return
    types, numbers = btf.function_types([size for _, size in subprograms])
    starts = [0, *(at // INSTRUCTION for at, _ in subprograms)]
    records = b"".join(map(btf.FUNCTION_INFO.pack, starts, numbers))
    memory = ctypes.create_string_buffer(records, len(records))
    address = ctypes.addressof(memory)
    try:
        yield struct.pack("=IIQI4x", types, btf.FUNCTION_INFO.size, address, len(starts))
    finally:
        os.close(types)
