"""Bytecode becomes maps and programs of the kernel, pinned in a directory.

Every build gets into the kernel this way, whether it was compiled now or is from the cache.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bpfsvc.base.errors import KernelError, SystemUnfit
from bpfsvc.datapath import syscall
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.kernel_names import kernel_name
from bpfsvc.datapath.loader import crc32c, creation, features
from bpfsvc.datapath.loader.bytecode import Bytecode, Program
from bpfsvc.datapath.loader.compiler import DROP_PROGRAM, TRACEPOINT_PROGRAMS
from bpfsvc.datapath.loader.shared_maps import is_shared
from bpfsvc.datapath.maps.layout import MapLayout, read_layout
from bpfsvc.datapath.maps.pins import Pinned

AGENT_PROGRAMS = ("gc", "recount")
"""Programs that the agent runs itself. It writes Services by them before any is attached."""

_THREADS = 4
"""Programs that are verified at a time, at most; all take a quarter of a second together."""


def load_build(
    build: Bytecode,
    directory: Path,
    previous: Pinned | None = None,
    usable: Callable[[], None] = lambda: None,
) -> None:
    """Make ``directory`` and pin maps and programs of ``build`` in it; raise :class:`BpfsvcError`.

    Maps of ``previous`` are shared as :func:`is_shared` says. Those that ``directory`` has already
    are used. After a failure, pins may stay. ``usable()`` is called as soon as the maps and
    ``AGENT_PROGRAMS`` are there.
    """
    try:
        _load_build(build, directory, previous, usable)
    except OSError as error:
        raise KernelError(f"nothing can be pinned at {directory}: {error.strerror}") from error


def _load_build(
    build: Bytecode, directory: Path, previous: Pinned | None, usable: Callable[[], None]
) -> None:
    (directory / "maps").mkdir(parents=True, exist_ok=True)
    (directory / "programs").mkdir()
    with ExitStack() as opened:
        maps = _maps(build, directory / "maps", previous, opened)
        for n, entry in enumerate(crc32c.steps(maps["crc32c_steps"].max_entries)):
            _write(maps["crc32c_steps"], n, entry)
        _write(maps["layout"], 0, build.layout.to_json().encode())
        descriptors = {name: opened_map.fd for name, opened_map in maps.items()}

        def load(programs: Iterable[Program]) -> dict[str, int]:
            loaded = _programs(programs, build.license, descriptors, opened)
            for name, program in loaded.items():
                syscall.pin(program, directory / "programs" / name)
            return loaded

        programs = load(program for program in build.programs if program.name in AGENT_PROGRAMS)
        usable()
        left_out = (*AGENT_PROGRAMS, *_not_of_this_kernel())
        programs |= load(program for program in build.programs if program.name not in left_out)
        for n, name in enumerate(build.steps):
            _write(maps["steps"], n, programs[name].to_bytes(4, sys.byteorder))


def _not_of_this_kernel() -> tuple[str, ...]:
    """Return the programs that this kernel would refuse, and that others do without."""
    has = features.of_this_kernel().has
    left_out = () if features.SOCKET_TRACEPOINTS in has else (*TRACEPOINT_PROGRAMS,)
    return left_out if features.DROP_REASONS in has else (*left_out, *DROP_PROGRAM)


def _maps(
    build: Bytecode, directory: Path, previous: Pinned | None, opened: ExitStack
) -> dict[str, Map]:
    """Make and pin all maps, or open those that are there; ``opened`` closes them."""
    is_there = (directory / "layout").exists()
    if is_there and read_layout(directory) != build.layout:
        raise KernelError(f"the maps in {directory} are of another build")
    maps: dict[str, Map] = {}
    for name, layout in build.layout.maps.items():
        if is_there:
            maps[name] = Map.pinned(directory / name)
        else:
            shared = (
                previous if previous and is_shared(name, previous.layout, build.layout) else None
            )
            maps[name] = _map(name, layout, shared)
        opened.callback(maps[name].close)
        if not is_there:
            syscall.pin(maps[name].fd, directory / name)
    return maps


def _map(name: str, layout: MapLayout, previous: Pinned | None) -> Map:
    try:
        if previous:
            created = Map.pinned(previous.directory / "maps" / name)
        else:
            created = Map(creation.create_map(kernel_name(name), layout), name)
    except OSError as error:
        raise KernelError(
            f"map {name} cannot be made: {error.strerror}",
            "this needs CAP_BPF, and no seccomp profile that forbids bpf(2);"
            " before Linux 5.11 also CAP_SYS_RESOURCE, or no limit of locked memory"
            if error.errno == errno.EPERM
            else "",
        ) from error
    sizes = (created.key_size, created.cpu_value_size if created.per_cpu else created.value_size)
    expected = layout.value.size + (-layout.value.size % 8 if created.per_cpu else 0)
    if sizes != (layout.key.size, expected):
        created.close()
        raise KernelError(
            f"map {name} has entries of {sizes} bytes, not {layout.key.size}, {expected}"
        )
    return created


def _programs(
    wanted: Iterable[Program], license_text: str, maps: dict[str, int], opened: ExitStack
) -> dict[str, int]:
    """Load programs; return their descriptors, which ``opened`` closes."""
    of_kernel = features.of_this_kernel()

    def load(program: Program) -> int:
        fd = creation.load_program(
            kernel_name(program.name),
            program.kind,
            program.attach_type,
            of_kernel.adapted(program.linked(maps)),
            license_text,
            # Else the verifier follows a subprogram for each call.
            program.subprograms if features.MEMORY_ARGUMENTS in of_kernel.has else (),
        )
        opened.callback(os.close, fd)
        return fd

    programs = {}
    # Programs are verified in parallel. Large ones first, or else the last of them would run alone.
    order = sorted(wanted, key=lambda program: -len(program.code))
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for program, loading in [(program, pool.submit(load, program)) for program in order]:
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
        "bpfsvc is tested on Linux 5.10 to 6.18, and needs root, or CAP_BPF, CAP_NET_ADMIN and"
        " CAP_PERFMON",
    )


def _write(array: Map, index: int, value: bytes) -> None:
    key = index.to_bytes(array.key_size, sys.byteorder)
    array.update(key, value.ljust(array.value_size, b"\0"))
