"""The bpf(2) calls that make things: maps, programs, and the types that one kind of map asks for.

Only loading a build needs them. Layouts and numbers are those of the kernel's ``linux/bpf.h``.
"""

from __future__ import annotations

import ctypes
import os
import struct

from bpfsvc.datapath import syscall
from bpfsvc.datapath.build.bytecode import INSTRUCTION
from bpfsvc.datapath.kernel_names import LENGTH
from bpfsvc.datapath.maps.layout import MapLayout

_MAP_CREATE, _PROG_LOAD, _BTF_LOAD = 0, 5, 18

_TYPE_NUMBERS = {name: number for number, name in syscall.TYPE_NAMES.items()}

_TRIES = 5
"""The verifier gives up with EAGAIN when a signal is due, whose handler then runs."""

_KIND_INT, _KIND_STRUCT = 1 << 24, 4 << 24
_SIGNED_32_BITS = 1 << 24 | 32
_KEY, _VALUE = 1, 2


def create_map(name: str, layout: MapLayout) -> int:
    """Make the empty map ``name``; return its descriptor."""
    kind = _TYPE_NUMBERS.get(layout.type) or int(layout.type)
    types = _load_types(layout.value.size) if layout.type == "sk_storage" else None
    try:
        attributes = struct.pack(
            "=IIIII8x16s4xIII",
            kind,
            layout.key.size,
            layout.value.size,
            layout.max_entries,
            layout.flags,
            name.encode()[:LENGTH],
            *((0, 0, 0) if types is None else (types, _KEY, _VALUE)),
        )
        return syscall.call(_MAP_CREATE, attributes)
    finally:
        if types is not None:
            os.close(types)


def load_program(name: str, kind: int, attach_type: int, code: bytes, license_text: str) -> int:
    """Load the program ``name``; return its descriptor. Other threads run while it is verified."""
    instructions = ctypes.create_string_buffer(code, len(code))
    terms = ctypes.create_string_buffer(license_text.encode())
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
            return syscall.call(_PROG_LOAD, attributes)
        except BlockingIOError:
            continue
    return syscall.call(_PROG_LOAD, attributes)


def _load_types(value_size: int) -> int:
    """Load the types of a key and a value, which storage of sockets must have; return a descriptor.

    The key has to be an ``int``. Of the value only the size matters, so it is a struct without
    members.
    """
    names = b"\0int\0"
    types = struct.pack("=IIII", 1, _KIND_INT, 4, _SIGNED_32_BITS)
    types += struct.pack("=III", 0, _KIND_STRUCT, value_size)
    head = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(names))
    blob = head + types + names
    data = ctypes.create_string_buffer(blob, len(blob))
    return syscall.call(_BTF_LOAD, struct.pack("=Q8xI8x", ctypes.addressof(data), len(data)))
