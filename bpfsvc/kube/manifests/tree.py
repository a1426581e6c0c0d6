"""The files of a directory of manifests, and the directories to watch for changes of the files.

Names that begin with a dot, a tilde or a hash belong to editors, to version control and to the
kubelet, which keeps the files of a mounted ConfigMap in ``..data`` and shows them as links. Links
are followed, to files and to directories, and every file and directory counts once, however many
names it has. The directory that holds a linked file is watched, too: changes happen there.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from bpfsvc.kube.source import ParseError

Identity = int
"""Device and inode in one number."""


class ManifestTree(NamedTuple):
    """What a walk found.

    * ``files``: relative names and their stamps (:func:`stamp`), 0 for one that has none.
    * ``directories``: every directory to be watched, and which one it was.
    * ``problems``: directories that cannot be read.
    """

    files: dict[str, int]
    directories: dict[str, Identity]
    problems: tuple[ParseError, ...]

    @property
    def exists(self) -> bool:
        """True if the directory itself was there."""
        return bool(self.directories or self.problems)

    def without_files(self) -> ManifestTree:
        """Return the tree without its files, which may be many, once they have been compared."""
        return self._replace(files={})


def is_manifest(name: str) -> bool:
    """True if a file of this name is a manifest."""
    return name.endswith((".yaml", ".yml", ".json")) and not _is_private(name)


def _is_private(name: str) -> bool:
    return name.startswith((".", "~", "#"))


def stamp(status: os.stat_result) -> int:
    """Return one number that changes when a file is written or replaced."""
    return hash((status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev))


def identity(path: str | Path) -> Identity | None:
    """Return which directory this is; ``None`` if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called four times a second
    except OSError:
        return None
    return _identity(status) if stat.S_ISDIR(status.st_mode) else None


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev << 64 | status.st_ino


def walk(root: Path) -> ManifestTree:
    """Go through the directory. One that vanishes meanwhile counts as empty."""
    top = str(root)
    files: dict[str, int] = {}
    directories: dict[str, Identity] = {}
    problems: list[ParseError] = []
    seen: set[Identity] = set()

    def unreadable(error: OSError) -> None:
        if identity(error.filename) is not None:
            reason = f"cannot be read: {error.strerror}"
            problems.append(ParseError(_prefix(top, error.filename) or "./", 0, reason))

    for path, below, names in os.walk(top, onerror=unreadable, followlinks=True):
        here = identity(path)
        if here is None or here in seen:
            below.clear()
            continue
        seen.add(here)
        directories.setdefault(path, here)
        prefix = _prefix(top, path)
        below[:] = sorted(name for name in below if not _is_private(name))
        for name in sorted(filter(is_manifest, names)):
            file = f"{path}/{name}"
            try:
                status = os.lstat(file)
                if stat.S_ISLNK(status.st_mode):
                    _watch_target(file, directories)
                    status = os.stat(file)  # noqa: PTH116 - of twenty thousand files
            except OSError:
                files[prefix + name] = 0
                continue
            if _identity(status) not in seen:
                seen.add(_identity(status))
                files[prefix + name] = stamp(status)
    return ManifestTree(files, directories, tuple(problems))


def _prefix(top: str, path: str) -> str:
    return path[len(top) + 1 :] + "/" if path != top else ""


def _watch_target(link: str, directories: dict[str, Identity]) -> None:
    """Add the directory of the file that a link names."""
    target = os.path.dirname(os.path.realpath(link))  # noqa: PTH120
    there = identity(target)
    if there and there not in directories.values():
        directories[target] = there
