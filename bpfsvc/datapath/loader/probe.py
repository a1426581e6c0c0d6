"""Find out whether this kernel has the features that the programs need, by trying each.

A version number says little: distributions carry features back, and configure others out. So each
type of map is made, and a program of two instructions is loaded for each hook, through the same
system call as the real ones. Nothing is attached, nothing stays. ``features.py`` has those that
programs can do without.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from functools import partial

from bpfsvc.datapath import syscall
from bpfsvc.datapath.instructions import Code
from bpfsvc.datapath.loader import creation

_BTF_LOAD = 18
_NO_PREALLOC = 1

_MAPS = {"hash": 1, "array": 2, "prog_array": 3, "percpu_array": 6, "lru_hash": 9, "lpm_trie": 11}
_SK_STORAGE = 24

_SCHED_CLS, _SOCK_ADDR = 3, 18
_SOCKET_HOOKS = {"connect4": 10, "sendmsg4": 14, "recvmsg4": 19, "getpeername4": 29}


def missing() -> tuple[str, ...]:
    """Name what this kernel refuses, each with its reason; nothing if all is well."""
    return tuple(_missing())


def _missing() -> Iterator[str]:
    for name, attempt in _attempts():
        try:
            os.close(attempt())
        except OSError as error:
            yield f"{name}: {os.strerror(error.errno or 0)}"


def _attempts() -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield the attempts, each with a name; an attempt returns a descriptor."""
    for name, kind in _MAPS.items():
        yield f"maps of type {name}", partial(_make_map, kind)
    yield "maps of type sk_storage", _make_storage
    yield "tc programs", partial(_load, _SCHED_CLS, _returning(0))
    for name, attach_type in _SOCKET_HOOKS.items():
        attempt = partial(_load, _SOCK_ADDR, _returning(1), attach_type)
        yield f"socket programs at {name}", attempt


def _make_map(kind: int) -> int:
    is_trie, is_steps = kind == _MAPS["lpm_trie"], kind == _MAPS["prog_array"]
    sizes = 8 if is_trie else 4, 4 if is_steps else 8
    return syscall.create(
        syscall.MAP_CREATE, struct.pack("=IIIII", kind, *sizes, 2, _NO_PREALLOC if is_trie else 0)
    )


def _make_storage() -> int:
    """Make a map of socket storage, which needs a description of its types: here, two ints."""
    strings = b"\0int\0"
    integer = struct.pack("=IIII", 1, 1 << 24, 4, 1 << 24 | 32)
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(integer), len(integer), len(strings))
    data = ctypes.create_string_buffer(header + integer + strings, 24 + len(integer) + len(strings))
    types = syscall.call(
        _BTF_LOAD, struct.pack("=QQIII", ctypes.addressof(data), 0, len(data), 0, 0)
    )
    try:
        return syscall.create(
            syscall.MAP_CREATE,
            struct.pack(
                "=IIIIIII16sIIII", _SK_STORAGE, 4, 4, 0, _NO_PREALLOC, 0, 0, b"", 0, types, 1, 1
            ),
        )
    finally:
        os.close(types)


def _load(kind: int, code: bytes, attach_type: int = 0) -> int:
    return creation.load_program("bpfsvc_probe", kind, attach_type, code, "GPL")


def _returning(value: int) -> bytes:
    code = Code()
    code.leave(value)
    return code.finish()
