"""Attach the programs that count failed connections of sockets, by links that are pinned.

A link of a tracepoint cannot be updated, so a newer build attaches its programs before the links of
the older build end. A failure is counted once all the same: who counts it notes that at the socket.
"""

from __future__ import annotations

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import links
from bpfsvc.datapath.loader.compiler import TRACEPOINT_PROGRAMS
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
