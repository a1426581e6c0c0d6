"""Which BPF programs and maps there are in the kernel, whoever loaded them, and their names.

The kernel cuts names to 15 characters, and numbers programs and maps of the whole machine: what is
loaded says nothing about this network namespace. What is attached here does. Looking an object up
by its number takes CAP_SYS_ADMIN; without it names are empty, and sets of names unknown (None).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator

from bpfsvc.datapath import bpf
from bpfsvc.datapath.netlink.hooks import Hook
from bpfsvc.datapath.tcx import ATTACH_TYPES

_PROG_GET_NEXT_ID, _MAP_GET_NEXT_ID = 11, 12
_PROG_GET_FD_BY_ID, _MAP_GET_FD_BY_ID = 13, 14
_PROG_QUERY = 16

_MAP_NAME, _PROG_MAPS, _PROG_NAME = 24, 52, 64
"""Offsets in ``struct bpf_map_info`` and ``struct bpf_prog_info``: name; nr_map_ids; name."""
_NAME_SIZE = 16
_MOST = 64
"""Programs that a hook can hold, and maps that are asked of a program."""

_FORBIDDEN = {errno.EPERM, errno.EACCES}
_GONE = {errno.ENOENT}


def program_names() -> frozenset[str] | None:
    """Give the names of all loaded programs; None without the right to look."""
    return _names(_PROG_GET_NEXT_ID, _PROG_GET_FD_BY_ID, _PROG_NAME)


def map_names() -> frozenset[str] | None:
    """Give the names of all maps; None without the right to look."""
    return _names(_MAP_GET_NEXT_ID, _MAP_GET_FD_BY_ID, _MAP_NAME)


def program_name(number: int) -> str:
    """Give the name of a program by its id; "" if it has none, has gone, or cannot be seen."""
    return _name(_PROG_GET_FD_BY_ID, number, _PROG_NAME) or ""


def maps_of(number: int) -> frozenset[str]:
    """Give the names of the maps a program uses; empty if it cannot be seen."""
    fd = _open(_PROG_GET_FD_BY_ID, number)
    if fd is None:
        return frozenset()
    try:
        identifiers = ctypes.create_string_buffer(4 * _MOST)
        # The kernel writes the ids where the structure it is given points.
        size = _PROG_MAPS + 12
        data = ctypes.create_string_buffer(size)
        struct.pack_into("=IQ", data, _PROG_MAPS, _MOST, ctypes.addressof(identifiers))
        bpf.call(bpf.OBJ_GET_INFO, struct.pack("=IIQ", fd, size, ctypes.addressof(data)))
        count = min(_MOST, struct.unpack_from("=I", data, _PROG_MAPS)[0])
        numbers = struct.unpack_from(f"={count}I", identifiers)
    finally:
        os.close(fd)
    return frozenset(filter(None, (_name(_MAP_GET_FD_BY_ID, each, _MAP_NAME) for each in numbers)))


def tcx_programs(ifindex: int, hook: Hook) -> tuple[int, ...]:
    """Give the ids of the tcx programs on a hook, in the order in which packets meet them."""
    found = ctypes.create_string_buffer(4 * _MOST)
    # target_ifindex, attach_type, query_flags, attach_flags, prog_ids, count, and what is not asked
    attributes = ctypes.create_string_buffer(
        struct.pack(
            "=IIIIQI36x", ifindex, ATTACH_TYPES[hook], 0, 0, ctypes.addressof(found), _MOST
        ),
        64,
    )
    try:
        bpf.call(_PROG_QUERY, attributes)
    except OSError as error:
        # EINVAL: this kernel has no tcx. ENODEV: the interface has gone.
        if error.errno in {errno.EINVAL, errno.ENODEV, errno.ENOENT} | _FORBIDDEN:
            return ()
        raise
    count = min(_MOST, struct.unpack_from("=I", attributes, 24)[0])
    return struct.unpack_from(f"={count}I", found)


def _names(following: int, opening: int, offset: int) -> frozenset[str] | None:
    found = set()
    try:
        for number in _numbers(following):
            name = _name(opening, number, offset)
            if name is None:
                return None
            found.add(name)
    except OSError as error:
        if error.errno in _FORBIDDEN:
            return None
        raise
    return frozenset(found - {""})


def _numbers(following: int) -> Iterator[int]:
    number = 0
    while True:
        attributes = ctypes.create_string_buffer(struct.pack("=III", number, 0, 0), 12)
        try:
            bpf.call(following, attributes)
        except OSError as error:
            if error.errno in _GONE:
                return
            raise
        number = struct.unpack_from("=I", attributes, 4)[0]
        yield number


def _name(opening: int, number: int, offset: int) -> str | None:
    """Give the name of an object; "" if it has none or has gone, None if it cannot be seen."""
    try:
        fd = bpf.call(opening, struct.pack("=III", number, 0, 0))
    except OSError as error:
        if error.errno in _GONE:
            return ""
        if error.errno in _FORBIDDEN:
            return None
        raise
    try:
        raw = bpf.info(fd, offset + _NAME_SIZE)[offset:]
    finally:
        os.close(fd)
    return raw.partition(b"\0")[0].decode(errors="replace")


def _open(opening: int, number: int) -> int | None:
    try:
        return bpf.call(opening, struct.pack("=III", number, 0, 0))
    except OSError as error:
        if error.errno in _GONE | _FORBIDDEN:
            return None
        raise
