"""The BPF programs and maps in the kernel, of all programs on the machine, and their names.

The kernel cuts names to 15 characters and numbers the objects of the whole machine: loaded programs
say nothing about this network namespace, attached programs do. To open an object by its id takes
CAP_SYS_ADMIN; without it names are empty, and sets of names unknown (None).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from bpfsvc.datapath import syscall

_PROG_GET_NEXT_ID, _MAP_GET_NEXT_ID = 11, 12
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID = 13, 14

_MAP_NAME, _PROG_MAPS, _PROG_NAME = 24, 52, 64
"""Offsets in ``struct bpf_map_info`` and ``struct bpf_prog_info``: name; nr_map_ids; name."""
_NAME_SIZE = 16
_MAX_IDS = 64
"""How many maps of a program are read."""

_FORBIDDEN = {errno.EPERM, errno.EACCES}
_GONE = {errno.ENOENT}


def program_names() -> frozenset[str] | None:
    """Return the names of all loaded programs; None without the permission."""
    return _names(_PROG_GET_NEXT_ID, _PROG_GET_FD_BY_ID, _PROG_NAME)


def map_names() -> frozenset[str] | None:
    """Return the names of all maps; None without the permission."""
    return _names(_MAP_GET_NEXT_ID, _MAP_GET_FD_BY_ID, _MAP_NAME)


def program_name(program_id: int) -> str:
    """Return the name of a program; "" if it has none, has gone, or cannot be opened."""
    return _name(_PROG_GET_FD_BY_ID, program_id, _PROG_NAME) or ""


def maps_of(program_id: int) -> frozenset[str]:
    """Return the names of the maps of a program; empty if it cannot be opened."""
    fd = _open(_PROG_GET_FD_BY_ID, program_id)
    if fd is None:
        return frozenset()
    try:
        identifiers = ctypes.create_string_buffer(4 * _MAX_IDS)
        # The kernel writes the ids to the address in the structure that it is given.
        size = _PROG_MAPS + 12
        data = ctypes.create_string_buffer(size)
        struct.pack_into("=IQ", data, _PROG_MAPS, _MAX_IDS, ctypes.addressof(identifiers))
        syscall.call(syscall.OBJ_GET_INFO, struct.pack("=IIQ", fd, size, ctypes.addressof(data)))
        count = min(_MAX_IDS, struct.unpack_from("=I", data, _PROG_MAPS)[0])
        map_ids = struct.unpack_from(f"={count}I", identifiers)
    finally:
        os.close(fd)
    return frozenset(
        filter(None, (_name(_MAP_GET_FD_BY_ID, map_id, _MAP_NAME) for map_id in map_ids))
    )


def _names(get_next_id: int, get_fd: int, offset: int) -> frozenset[str] | None:
    names = set()
    try:
        for object_id in _ids(get_next_id):
            name = _name(get_fd, object_id, offset)
            if name is None:
                return None
            names.add(name)
    except OSError as error:
        if error.errno in _FORBIDDEN:
            return None
        raise
    return frozenset(names - {""})


def _ids(get_next_id: int) -> Iterator[int]:
    object_id = 0
    while True:
        attributes = ctypes.create_string_buffer(struct.pack("=III", object_id, 0, 0), 12)
        try:
            syscall.call(get_next_id, attributes)
        except OSError as error:
            if error.errno in _GONE:
                return
            raise
        object_id = struct.unpack_from("=I", attributes, 4)[0]
        yield object_id


def _name(get_fd: int, object_id: int, offset: int) -> str | None:
    """Return the name of an object; "" if it has none or has gone, None without the permission."""
    try:
        fd = syscall.call(get_fd, struct.pack("=III", object_id, 0, 0))
    except OSError as error:
        if error.errno in _GONE:
            return ""
        if error.errno in _FORBIDDEN:
            return None
        raise
    try:
        raw = syscall.info(fd, offset + _NAME_SIZE)[offset:]
    finally:
        os.close(fd)
    return raw.partition(b"\0")[0].decode(errors="replace")


def _open(get_fd: int, object_id: int) -> int | None:
    try:
        return syscall.call(get_fd, struct.pack("=III", object_id, 0, 0))
    except OSError as error:
        if error.errno in _GONE | _FORBIDDEN:
            return None
        raise
