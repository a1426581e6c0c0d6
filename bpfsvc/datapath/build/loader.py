"""Bytecode becomes maps and programs of the kernel, pinned in a directory.

Every build gets into the kernel this way, whether it was compiled now or is from the cache.
"""

from __future__ import annotations

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bpfsvc.base.errors import KernelError, SystemUnfit
from bpfsvc.datapath import syscall
from bpfsvc.datapath.build import crc32c, creation
from bpfsvc.datapath.build.bytecode import Bytecode, Program
from bpfsvc.datapath.build.optional_helpers import without_optional
from bpfsvc.datapath.kernel_names import kernel_name
from bpfsvc.datapath.maps.layout import MapLayout
from bpfsvc.datapath.maps.pins import Pinned

OWN_MAPS = ("layout", "steps")
"""Maps that no two builds share."""

_THREADS = 4
"""Programs that are verified at a time, at most; all take a quarter of a second together."""


def load_build(build: Bytecode, directory: Path, previous: Pinned | None = None) -> None:
    """Make ``directory`` and pin maps and programs of ``build`` in it; raise :class:`BpfsvcError`.

    Maps of ``previous`` that have the same layout are shared. After a failure, pins may stay.
    """
    try:
        _load_build(build, directory, previous)
    except OSError as error:
        raise KernelError(f"nothing can be pinned at {directory}: {error.strerror}") from error


def _load_build(build: Bytecode, directory: Path, previous: Pinned | None) -> None:
    (directory / "maps").mkdir(parents=True)
    (directory / "programs").mkdir()
    with ExitStack() as opened:
        maps: dict[str, syscall.Map] = {}
        for name, layout in build.layout.maps.items():
            maps[name] = _map(name, layout, previous)
            opened.callback(maps[name].close)
            syscall.pin(maps[name].fd, directory / "maps" / name)
        programs = _programs(build, {name: found.fd for name, found in maps.items()}, opened)
        for name, program in programs.items():
            syscall.pin(program, directory / "programs" / name)
        for n, name in enumerate(build.steps):
            _write(maps["steps"], n, programs[name].to_bytes(4, sys.byteorder))
        for n, entry in enumerate(crc32c.steps(maps["crc32c_steps"].max_entries)):
            _write(maps["crc32c_steps"], n, entry)
        _write(maps["layout"], 0, build.layout.to_json().encode())


def _map(name: str, layout: MapLayout, previous: Pinned | None) -> syscall.Map:
    try:
        if previous and name not in OWN_MAPS and previous.layout.maps.get(name) == layout:
            found = syscall.Map.pinned(previous.directory / "maps" / name)
        else:
            found = syscall.Map(creation.create_map(kernel_name(name), layout), name)
    except OSError as error:
        raise KernelError(f"map {name} cannot be made: {error.strerror}") from error
    sizes = (found.key_size, found.cpu_value_size if found.per_cpu else found.value_size)
    expected = layout.value.size + (-layout.value.size % 8 if found.per_cpu else 0)
    if sizes != (layout.key.size, expected):
        found.close()
        raise KernelError(
            f"map {name} has entries of {sizes} bytes, not {layout.key.size}, {expected}"
        )
    return found


def _programs(build: Bytecode, maps: dict[str, int], opened: ExitStack) -> dict[str, int]:
    """Load all programs; return their descriptors, which ``opened`` closes."""

    def load(program: Program) -> int:
        code, name = program.linked(maps), kernel_name(program.name)
        kind = (program.kind, program.attach_type)
        behind = program.subprograms
        try:
            fd = creation.load_program(name, *kind, code, build.license, behind)
        except OSError:
            reduced = without_optional(code)
            if reduced == code:
                raise
            fd = creation.load_program(name, *kind, reduced, build.license, behind)
        opened.callback(os.close, fd)
        return fd

    programs = {}
    # Programs are verified in parallel. Large ones first, or else the last of them would run alone.
    order = sorted(build.programs, key=lambda program: -len(program.code))
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for program, loading in [(one, pool.submit(load, one)) for one in order]:
            try:
                programs[program.name] = loading.result()
            except OSError as error:
                raise _refusal(program.name, error) from error
    return programs


def _refusal(name: str, error: OSError) -> SystemUnfit:
    reason = (
        "Need super-user privileges to run"
        if error.errno == errno.EPERM
        else f"Failed to load BPF program {name}: {error.strerror}"
    )
    return SystemUnfit(
        f"this kernel ({os.uname().release}) refuses the program {name}: {reason}",
        "bpfsvc is tested on Linux 6.1 and 6.18, and needs root, or CAP_BPF and CAP_NET_ADMIN",
    )


def _write(found: syscall.Map, index: int, value: bytes) -> None:
    key = index.to_bytes(found.key_size, sys.byteorder)
    found.update(key, value.ljust(found.value_size, b"\0"))
