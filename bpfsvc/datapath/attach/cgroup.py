"""Attach the socket LB programs to a cgroup, by links that are pinned.

A link keeps its program attached when the agent ends, and lets a newer program replace it in one
step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from bpfsvc.base.errors import KernelError, SystemUnfit, UsageError
from bpfsvc.datapath import netns_cookie as netns
from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import links
from bpfsvc.datapath.loader.compiler import SOCKET_PROGRAMS, WATCH_PROGRAM
from bpfsvc.datapath.maps.pins import Pinned, PinRoot, filesystem_magic, release

_CGROUP2_MAGIC = 0x63677270


def netns_cookie() -> int:
    """Return the cookie of this network namespace, by which the programs know its sockets."""
    return netns.netns_cookie(_own_cgroup)


def _own_cgroup() -> Path:
    """Return the directory of this process's cgroup, or that of all where its own is hidden."""
    root = find_cgroup_root()
    for row in Path("/proc/self/cgroup").read_text().splitlines():
        number, _, path = row.split(":", 2)
        if number == "0" and ".." not in path and (root / path.lstrip("/")).is_dir():
            return root / path.lstrip("/")
    return root


def find_cgroup_root() -> Path:
    """Return where cgroup2 is mounted; :class:`SystemUnfit` if it is not."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(mount_point.replace("\\040", " "))
    raise SystemUnfit(
        "no cgroup2 file system is mounted, so the node's own sockets cannot reach Services",
        "mount -t cgroup2 none /sys/fs/cgroup/unified, or give --cgroup-root none to do without",
    )


def check_cgroup_root(path: Path) -> None:
    """Raise :class:`UsageError` unless ``path`` is a directory of a cgroup2 file system."""
    if not path.is_dir():
        raise UsageError(f"--cgroup-root {path} is not a directory", "name a cgroup2 directory")
    if filesystem_magic(path) != _CGROUP2_MAGIC:
        raise UsageError(
            f"--cgroup-root {path} is not in a cgroup2 file system",
            "mount -t cgroup2 none DIR, or give --cgroup-root none to do without",
        )


def attach(root: PinRoot, pinned: Pinned, cgroup: Path) -> None:
    """Attach every socket LB program to ``cgroup``, or replace our former ones there."""
    _attach_all(root, pinned, cgroup, SOCKET_PROGRAMS)


def watch(root: PinRoot, pinned: Pinned, cgroup: Path) -> None:
    """Attach the program that follows TCP sockets, or replace our former one there."""
    _attach_all(root, pinned, cgroup, WATCH_PROGRAM)


def is_watched(root: PinRoot) -> bool:
    """Return True if the program that follows TCP sockets is attached."""
    return bool(attached(root, WATCH_PROGRAM))


def unwatch(root: PinRoot) -> None:
    """Detach the program that follows TCP sockets, if it is attached."""
    _detach_all(root, WATCH_PROGRAM)


def _attach_all(root: PinRoot, pinned: Pinned, cgroup: Path, programs: Mapping[str, int]) -> None:
    root.links.mkdir(exist_ok=True)
    try:
        target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # From the end of a socket to its beginning, which notes what the others free or read.
            for name, attach_type in reversed([*programs.items()]):
                _attach(root.links / name, pinned.program(name), target, attach_type)
        finally:
            os.close(target)
    except OSError as error:
        raise KernelError(
            f"cannot attach to cgroup {cgroup}: {error.strerror}",
            "give another --cgroup-root, or none",
        ) from error


def _attach(pin: Path, program: int, cgroup: int, attach_type: int) -> None:
    if pin.exists():
        with links.opened(pin) as link:
            try:
                if syscall.link_cgroup(link) == syscall.cgroup_id(cgroup):
                    syscall.link_update(link, program)
                    return
            except OSError as error:
                # The cgroup was removed, and the link with it.
                if error.errno not in (errno.ENOLINK, errno.EINVAL):
                    raise
    link = syscall.link_create(program, cgroup, attach_type)
    syscall.keep_link(link, pin)


def attached(root: PinRoot, programs: Iterable[str] = SOCKET_PROGRAMS) -> dict[str, int]:
    """Return the ids of those that are attached to a cgroup, by the name of the program."""
    ids = {}
    for name in programs:
        if not (root.links / name).exists():
            continue
        with links.opened(root.links / name) as link:
            if syscall.link_cgroup(link):  # else the cgroup was removed
                ids[name] = syscall.link_program(link)
    return ids


def detach(root: PinRoot) -> int:
    """Detach every program of sockets; return how many there were."""
    return _detach_all(root, (*SOCKET_PROGRAMS, *WATCH_PROGRAM))


def _detach_all(root: PinRoot, programs: Iterable[str]) -> int:
    pins = [root.links / name for name in programs]
    present = [pin for pin in pins if pin.exists()]
    for pin in present:
        release(pin)
    return len(present)
