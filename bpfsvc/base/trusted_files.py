"""Files and directories that are used only if no stranger can have written to them.

Programs for the kernel, its pins, and the objects of a boot without the API server. Only root and
the user of this process may write: the file, its directory and all directories above it are
checked.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_LARGEST = 16 << 20
"""Bytes of a file that are read, unless the caller says otherwise; 500 KB are usual."""


def distrust(directory: Path) -> str:
    """Return why others may have written to a directory; empty if they cannot have.

    ``directory`` is resolved, so no part of it is a symbolic link. ``OSError`` if it is not there.
    """
    for path in (directory, *directory.parents):
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return f"{path} is not a directory"
        # In a sticky directory such as /tmp users cannot replace what belongs to others.
        sticky = status.st_mode & stat.S_ISVTX and path != directory
        if not _trusted(status, ignore_mode=bool(sticky)):
            return f"others may write to {path}"
    return ""


def read(path: Path, largest: int = _LARGEST) -> bytes:
    """Return the content of a file; ``ValueError`` if others may have written it, ``OSError``.

    ``largest``: bytes; a longer file is a ``ValueError``, too.
    """
    with open(path, "rb", opener=_plainly) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _trusted(status):
            raise ValueError("could have been written by others")
        if status.st_size > largest:
            raise ValueError("is too large")
        return file.read()


def _trusted(status: os.stat_result, *, ignore_mode: bool = False) -> bool:
    ours = status.st_uid in (0, os.geteuid())
    return ours and (ignore_mode or not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _plainly(path: str, flags: int) -> int:
    # Not through a link, and without waiting for the other end of a pipe.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
