"""Where maps, programs and links are pinned in the bpf file system, and how they are opened.

::

    PIN_ROOT/current/maps/NAME        and programs/NAME: the build in force
    PIN_ROOT/next/...                 a newer build, until it is
    PIN_ROOT/old/...                  the one that it replaces, while the newer one may call it
    PIN_ROOT/aside-0/...              one that an agent attached, and that was never in force
    PIN_ROOT/links/NAME               cgroup attachments; their programs are replaced in place

A build moves from ``next`` to ``current`` by renaming, so a reader finds one or the other. Programs
of a ``next`` that an earlier agent has left may be attached, and call others by an array that is
empty without its pin: so they are set aside until this agent's programs are attached.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.base.syscalls import mount
from bpfsvc.base.trusted_files import distrust
from bpfsvc.datapath import syscall
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.layout import Layout, read_layout
from bpfsvc.datapath.maps.registry import option_for

_BPF_FS_MAGIC = 0xCAFE4A11

_ATTACHED = "attached"
"""A directory in that of a build: its programs may be attached."""

_COPIED = "copied-"
"""The beginning of a directory in that of a build, whose name says when connections were copied."""

BPF_MOUNT = Path("/sys/fs/bpf")
"""Where the kernel has a directory for a bpf file system."""

_LOCK_TRIES = 5
_LOCK_PAUSE = 0.05  # seconds


class NotLoaded(BpfsvcError):
    """Nothing of bpfsvc is pinned at a directory."""


class Pinned:
    """Maps and programs of one build, opened by name when they are first asked for."""

    def __init__(self, directory: Path) -> None:
        """Open a build's directory; raise :class:`NotLoaded` if nothing is pinned there."""
        self.directory = directory
        if not (directory / "maps" / "layout").exists():
            raise NotLoaded(
                f"bpfsvc is not loaded: nothing is pinned at {directory}",
                "start it with: bpfsvc run, or name another place with --pin-root",
            )
        self.layout: Layout = read_layout(directory / "maps")
        self._maps: dict[str, Map] = {}
        self._programs: dict[str, int] = {}

    def map(self, name: str) -> Map:
        """Return a map; it stays open and is shared."""
        if name not in self._maps:
            try:
                self._maps[name] = Map.pinned(self.directory / "maps" / name, option_for(name))
            except FileNotFoundError as error:
                raise NotLoaded(
                    f"map {name} is missing from {self.directory}", "restart the agent: bpfsvc run"
                ) from error
        return self._maps[name]

    def program(self, name: str) -> int:
        """Return the descriptor of a program; it stays open and is shared."""
        if name not in self._programs:
            try:
                self._programs[name] = syscall.get(self.directory / "programs" / name)
            except FileNotFoundError as error:
                raise NotLoaded(
                    f"program {name} is missing from {self.directory}",
                    "restart the agent: bpfsvc run",
                ) from error
        return self._programs[name]

    def close(self) -> None:
        """Close everything."""
        for opened in self._maps.values():
            opened.close()
        for fd in self._programs.values():
            os.close(fd)
        self._maps.clear()
        self._programs.clear()


@dataclass(frozen=True, slots=True)
class PinRoot:
    """A directory of a bpf file system that belongs to one agent."""

    path: Path

    @property
    def current(self) -> Path:
        """The build in force."""
        return self.path / "current"

    @property
    def next(self) -> Path:
        """The build that is being made."""
        return self.path / "next"

    @property
    def old(self) -> Path:
        """The build that was in force before."""
        return self.path / "old"

    @property
    def links(self) -> Path:
        """Attachments to cgroups."""
        return self.path / "links"

    def create(self) -> None:
        """Make the directory, for this user alone.

        Raises :class:`SystemUnfit` if it is not in a bpf file system, or if another user could
        remove the pins and put others in their place: everybody may make a directory in a bpf file
        system that was mounted without a mode.
        """
        if not self._is_in_bpffs():
            raise SystemUnfit(
                f"{self.path} is not in a bpf file system",
                "mount -t bpf bpf /sys/fs/bpf, or name another place with --pin-root",
            )
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if reason := self._distrust():
            raise SystemUnfit(
                f"the pins at {self.path} would not be safe: {reason}",
                f"remove {self.path}, and mount the bpf file system with -o mode=700,"
                " or name another place with --pin-root",
            )

    def mount(self, at: Path = BPF_MOUNT) -> bool:
        """Mount a bpf file system at its usual place, for this user alone, if the pins need it.

        Return whether one was mounted. Nothing is mounted at a directory that was named instead.
        """
        if self._is_in_bpffs() or not self.path.is_relative_to(at):
            return False
        mount("bpf", str(at), "bpf", options="mode=700")
        return True

    def _is_in_bpffs(self) -> bool:
        directory = self.path
        while not directory.exists():
            directory = directory.parent
        return is_bpffs(directory)

    def _distrust(self) -> str:
        """Return why another user could change the pins; empty if nobody can."""
        if self.path.lstat().st_uid not in (0, os.geteuid()):
            return f"{self.path} belongs to another user"
        return distrust(self.path.resolve())

    def lock(self) -> int:
        """Keep other agents away until this process ends."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        # A command that only asks whether an agent runs holds the lock for an instant.
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except BlockingIOError:
                time.sleep(_LOCK_PAUSE)
        os.close(fd)
        raise BpfsvcError(
            f"another bpfsvc is running with {self.path}",
            "stop it first, or give this one a place of its own with --pin-root",
        )

    def discard_next(self) -> None:
        """Remove a build that was never in force."""
        shutil.rmtree(self.next, ignore_errors=True)

    def mark_attached(self) -> None:
        """Note that programs of ``next`` may be attached."""
        (self.next / _ATTACHED).mkdir(exist_ok=True)

    def mark_copied(self, at: int) -> None:
        """Note when connections were copied to ``next`` last, in ns of CLOCK_MONOTONIC."""
        (self.next / f"{_COPIED}{at}").mkdir()

    def copied_at(self) -> int | None:
        """Return when connections were copied last to the build in force; None: never."""
        times = [int(path.name.removeprefix(_COPIED)) for path in self.current.glob(f"{_COPIED}*")]
        return max(times, default=None)

    def clear_next(self) -> None:
        """Make room for a build, after an agent that may have ended at any moment."""
        if self.old.exists() and not self.current.exists():
            self.old.rename(self.current)
        if not (self.next / _ATTACHED).exists():
            self.discard_next()
            return
        number = next(n for n in itertools.count() if not (self.path / f"aside-{n}").exists())
        self.next.rename(self.path / f"aside-{number}")

    def promote_next(self) -> None:
        """Put the new build in force. The old one stays pinned."""
        if self.current.exists():  # else it is the old one already: an agent has ended in between
            shutil.rmtree(self.old, ignore_errors=True)
            self.current.rename(self.old)
        self.next.rename(self.current)

    def discard_others(self) -> None:
        """Remove all builds but the one in force: no program of theirs is attached or called."""
        for directory in (self.old, *self.path.glob("aside-*")):
            shutil.rmtree(directory, ignore_errors=True)

    def remove(self) -> None:
        """Remove all pins; attached programs keep working until they are detached."""
        shutil.rmtree(self.path, ignore_errors=True)


def release(pin: Path) -> None:
    """Detach and unpin a link, of whichever kind."""
    link = syscall.get(pin)
    try:
        syscall.link_detach(link)
    except OSError as error:
        # What it was attached to may be gone already.
        if error.errno not in (errno.ENOLINK, errno.EINVAL):
            raise
    finally:
        os.close(link)
    pin.unlink()


def is_bpffs(path: Path) -> bool:
    """True if a path lies in a bpf file system."""
    return filesystem_magic(path) == _BPF_FS_MAGIC


def filesystem_magic(path: Path) -> int:
    """Return ``f_type`` of statfs(2): what kind of file system ``path`` lies in."""
    # struct statfs starts with f_type on every 64-bit architecture; os.statvfs leaves it out.
    data = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return int.from_bytes(data.raw[:8], sys.byteorder)
