"""Bytecode kept in files, so that only the first boot of a version compiles.

What stands in such a file is executed by the kernel. So it is read only where nobody but root (or
whom this process belongs to) can have put it: the file, its directory and all directories above
are looked at. A file is written beside its place and renamed into it, and carries a checksum.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bpfsvc.datapath.bytecode import Bytecode

DEFAULT = Path("/var/lib/bpfsvc/cache")

_SUFFIX = ".bytecode"

_KEPT = 3
"""Builds: the one in force, and those that one may want to go back to."""

_LARGEST = 16 << 20
"""Bytes of a file that are read; 200 KB are usual."""


class Cache:
    """The file of one build. Whatever is wrong with it is logged in one line and not an error."""

    def __init__(self, directory: Path, digest: str, log: Callable[[str], None]) -> None:
        """Keep the build ``digest`` in ``directory``, which need not exist."""
        self._path = directory.resolve() / f"{digest}{_SUFFIX}"
        self._digest = digest
        self._log = log
        self._usable = True

    def read(self) -> Bytecode | None:
        """Give the build, if it is there as this kernel can load it."""
        try:
            self._check_directory()
            if self._usable:
                return Bytecode.decode(_read(self._path), self._digest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.discard(f"cannot be read: {error.strerror}")
        except ValueError as error:
            self.discard(str(error))
        return None

    def discard(self, reason: str) -> None:
        """Remove the file, because of what ``reason`` says about it."""
        self._log(f"compiling anew: {self._path} {reason}")
        # If it cannot be removed, it cannot be written either, and that is told then.
        with suppress(OSError):
            self._path.unlink()

    def write(self, build: bytes) -> None:
        """Keep the build for the next boot."""
        if not self._usable:
            return
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._check_directory()
            if not self._usable:
                return
            with open(fresh, "wb", opener=_private) as file:
                file.write(build)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
            self._forget_oldest()
        except OSError as error:
            self._log(f"compiled programs are not kept: {self._path}: {error.strerror}")

    def _check_directory(self) -> None:
        reason = _distrust(self._path.parent)
        if reason:
            self._usable = False
            self._log(f"compiled programs are not kept: {reason}")

    def _forget_oldest(self) -> None:
        files = self._path.parent.glob(f"*{_SUFFIX}")
        others = sorted((one.stat().st_mtime, one) for one in files if one != self._path)
        for _, file in others[: 1 - _KEPT]:
            file.unlink(missing_ok=True)


def _distrust(place: Path) -> str:
    """Say why what stands in a directory may come from anybody; empty if it cannot.

    ``place`` leads through no link: what could be exchanged would be one by now.
    """
    for one in (place, *place.parents):
        found = one.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return f"{one} is not a directory"
        # In a sticky directory such as /tmp nobody can replace what belongs to another.
        sticky = found.st_mode & stat.S_ISVTX and one != place
        if not _trusted(found, ignore_mode=bool(sticky)):
            return f"others may write to {one}"
    return ""


def _trusted(found: os.stat_result, *, ignore_mode: bool = False) -> bool:
    ours = found.st_uid in (0, os.geteuid())
    return ours and (ignore_mode or not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _read(path: Path) -> bytes:
    with open(path, "rb", opener=_plainly) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or not _trusted(found):
            raise ValueError("could have been written by others")
        if found.st_size > _LARGEST:
            raise ValueError("is too large")
        return file.read()


def _plainly(path: str, flags: int) -> int:
    # Not through a link, and without waiting for the other end of a pipe.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
