"""Attaching the socket programs to a cgroup, by links that are pinned.

A link keeps its program attached when the agent dies, and lets a newer program take its place in
one step. Links are the only attachment that survives in the pin root itself.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from pathlib import Path

from bpfsvc.datapath import bpf
from bpfsvc.datapath.compiler import SOCKET_PROGRAMS
from bpfsvc.datapath.pins import Pinned, PinRoot, filesystem_magic, release
from bpfsvc.errors import KernelError, SystemUnfit, UsageError

_CGROUP2_MAGIC = 0x63677270
_SO_NETNS_COOKIE = 71


def netns_cookie() -> int:
    """Give the cookie of this network namespace, by which its sockets are told from others'."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return int(struct.unpack("=Q", probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))[0])


def find_cgroup_root() -> Path:
    """Find where cgroup2 is mounted; :class:`SystemUnfit` if it is not."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(place.replace("\\040", " "))
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
    """Attach every socket program to ``cgroup``, or replace the programs attached there before."""
    root.links.mkdir(exist_ok=True)
    target = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name, attach_type in SOCKET_PROGRAMS.items():
            _attach(root.links / name, pinned.program(name), target, attach_type)
    except OSError as error:
        raise KernelError(
            f"cannot attach to cgroup {cgroup}: {error.strerror}",
            "give another --cgroup-root, or none",
        ) from error
    finally:
        os.close(target)


def _attach(pin: Path, program: int, cgroup: int, attach_type: int) -> None:
    if pin.exists():
        link = bpf.get(pin)
        try:
            if bpf.link_cgroup(link) == bpf.cgroup_id(cgroup):
                bpf.link_update(link, program)
                return
        except OSError as error:
            # The cgroup was removed, and the link with it.
            if error.errno not in (errno.ENOLINK, errno.EINVAL):
                raise
        finally:
            os.close(link)
    link = bpf.link_create(program, cgroup, attach_type)
    bpf.keep_link(link, pin)


def attached(root: PinRoot) -> dict[str, int]:
    """Give the socket hooks that are attached to a cgroup, and the ids of their programs."""
    found = {}
    for name in SOCKET_PROGRAMS:
        if not (root.links / name).exists():
            continue
        link = bpf.get(root.links / name)
        try:
            if bpf.link_cgroup(link):  # else it was removed
                found[name] = bpf.link_program(link)
        finally:
            os.close(link)
    return found


def detach(root: PinRoot) -> int:
    """Detach every socket program; return how many there were."""
    pins = [root.links / name for name in SOCKET_PROGRAMS]
    found = [pin for pin in pins if pin.exists()]
    for pin in found:
        release(pin)
    return len(found)
