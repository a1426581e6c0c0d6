"""Attach programs of tracepoints: those that count failed connections of sockets, by pinned links.

A link of a tracepoint cannot be updated, so a newer build attaches its programs before the links of
the older build end. A failure is counted once all the same: who counts it notes that at the socket.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import links
from bpfsvc.datapath.loader.compiler import DROP_PROGRAM, TRACEPOINT_PROGRAMS
from bpfsvc.datapath.loader.kernel_types import DropTypes
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot


def attach(root: PinRoot, pinned: Pinned) -> bool:
    """Attach the programs, or replace those of another build. False if this kernel has none."""
    try:
        programs = {name: pinned.program(name) for name in TRACEPOINT_PROGRAMS}
    except NotLoaded:
        detach(root)
        return False
    root.links.mkdir(exist_ok=True)
    there = attached(root)
    for name, program in programs.items():
        if there.get(name) == syscall.program_id(program):
            continue
        try:
            link = syscall.tracepoint_open(program, TRACEPOINT_PROGRAMS[name])
            syscall.keep_link(link, root.links / name)
        except OSError as error:
            raise KernelError(
                f"the tracepoint {TRACEPOINT_PROGRAMS[name]} cannot be used: {error.strerror}",
                "give the agent CAP_PERFMON",
            ) from error
    return True


def attached(root: PinRoot) -> dict[str, int]:
    """Return the ids of the programs that are attached, by name."""
    ids = {}
    for name in TRACEPOINT_PROGRAMS:
        try:
            with links.opened(root.links / name) as link:
                ids[name] = syscall.link_program(link)
        except FileNotFoundError:
            continue
    return ids


def detach(root: PinRoot) -> int:
    """Detach the programs; return how many there were."""
    there = attached(root)
    for name in there:
        (root.links / name).unlink()
    return len(there)


def attach_dropped(pinned: Pinned, types: DropTypes, ignored: Iterable[int]) -> int:
    """Attach the program that tells of dropped packets; return the link, which is not pinned.

    ``ignored``: the numbers of reasons that it does not tell of. Raises :class:`NotLoaded` where
    this kernel was not given the program, and ``OSError`` if it refuses to attach it.
    """
    ((name, tracepoint),) = DROP_PROGRAM.items()
    program = pinned.program(name)
    record = pinned.layout.maps["dropped_packets"].value
    bits = sum(1 << number for number in set(ignored))
    size = 8 * pinned.layout.constant("IGNORED_WORDS")
    words = b"".join(
        (bits >> shift & (1 << 64) - 1).to_bytes(8, sys.byteorder)
        for shift in range(0, 8 * size, 64)
    )
    entry: dict[str, int | bytes] = {
        "head": types.head,
        "network_header": types.network_header,
        "socket": types.socket,
        "ignored": words,
    }
    pinned.map("dropped_packets").update(bytes(4), record.pack(entry))
    return syscall.tracepoint_open(program, tracepoint)
