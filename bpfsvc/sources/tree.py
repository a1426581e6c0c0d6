"""The files of a directory of manifests, and the directories whose events tell of them.

Names that begin with a dot, a tilde or a hash belong to editors, to version control and to the
kubelet, which keeps the files of a mounted ConfigMap in ``..data`` and shows them as links. Links
are followed, to files and to directories, and every file and directory counts once however many
names it has. Where a link to a file leads is watched too, or a change there would go unseen.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from bpfsvc.sources import Problem
from bpfsvc.sources.files import stamp

SUFFIXES = (".yaml", ".yml", ".json")

Identity = tuple[int, int]
"""Device and inode."""


class Tree(NamedTuple):
    """What a walk found.

    * ``files``: relative names and their stamps (:func:`files.stamp`), 0 for what has none.
    * ``directories``: every directory to be watched, and which one it was.
    * ``walked``: the directories gone through, by the relative prefix of their files.
    * ``problems``: directories that cannot be read.
    """

    files: dict[str, int]
    directories: dict[str, Identity]
    walked: dict[str, str]
    problems: tuple[Problem, ...]

    def without_files(self) -> Tree:
        """Give what is still of use when the files have been looked at; they may be many."""
        return self._replace(files={})


def is_manifest(name: str) -> bool:
    """Tell whether a file of this name is meant to be read."""
    return name.endswith(SUFFIXES) and not is_private(name)


def is_private(name: str) -> bool:
    """Tell whether a name belongs to something else than the person who keeps the manifests."""
    return name.startswith((".", "~", "#"))


def identity(path: str | Path) -> Identity | None:
    """Say which directory this is; ``None`` if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called four times a second
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISDIR(status.st_mode) else None


def walk(root: Path) -> Tree:
    """Go through the directory. One that vanishes on the way counts as empty."""
    return _Walk().run(str(root))


class _Walk:
    """One walk. It comes back every half minute, so what it holds of each file is little."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.directories: dict[str, Identity] = {}
        self.walked: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._seen: dict[int, set[int]] = {}
        """Inodes by device."""

    def run(self, root: str) -> Tree:
        here = identity(root)
        if here:
            self._directory(root, "", here)
        return Tree(self.files, self.directories, self.walked, tuple(self.problems))

    def _directory(self, path: str, prefix: str, here: Identity) -> None:
        if not self._is_new(here):
            return
        self.walked[path] = prefix
        try:
            entries = _list(path)
        except FileNotFoundError:
            return
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            self.problems.append(Problem(prefix or "./", 0, reason))
            return
        self.directories.setdefault(path, here)
        for name in entries.names:
            below = f"{path}/{name}"
            if name in entries.directories:
                there = identity(below)
                if there:
                    self._directory(below, f"{prefix}{name}/", there)
            elif name.endswith(SUFFIXES):
                self._file(below, prefix + name, is_link=name in entries.links)

    def _file(self, path: str, name: str, *, is_link: bool) -> None:
        try:
            if is_link:
                home = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
                there = identity(home)
                if there and there not in self.directories.values():
                    self.directories[home] = there
            status = os.stat(path)  # noqa: PTH116 - of twenty thousand files
        except OSError:
            self.files[name] = 0
            return
        if self._is_new((status.st_dev, status.st_ino)):
            self.files[name] = stamp(status)

    def _is_new(self, this: Identity) -> bool:
        device, inode = this
        seen = self._seen.setdefault(device, set())
        if inode in seen:
            return False
        seen.add(inode)
        return True


class _Entries(NamedTuple):
    """What is in a directory: all names in order, and which of them are not plain files."""

    names: list[str]
    directories: set[str]
    links: set[str]


def _list(path: str) -> _Entries:
    # An entry of scandir keeps its path and, once asked for, its status: ten times its name.
    found = _Entries([], set(), set())
    with os.scandir(path) as listing:
        for entry in listing:
            if is_private(entry.name):
                continue
            found.names.append(entry.name)
            if entry.is_symlink():
                found.links.add(entry.name)
            if _leads_to_directory(entry):
                found.directories.add(entry.name)
    found.names.sort()
    return found


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
