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
    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.directories: dict[str, Identity] = {}
        self.walked: dict[str, str] = {}
        self.problems: list[Problem] = []
        self._seen: set[Identity] = set()

    def run(self, root: str) -> Tree:
        here = identity(root)
        if here:
            self._directory(root, "", here)
        return Tree(self.files, self.directories, self.walked, tuple(self.problems))

    def _directory(self, path: str, prefix: str, here: Identity) -> None:
        if here in self._seen:
            return
        self._seen.add(here)
        self.walked[path] = prefix
        try:
            with os.scandir(path) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except FileNotFoundError:
            return
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
            self.problems.append(Problem(prefix or "./", 0, reason))
            return
        self.directories.setdefault(path, here)
        for entry in entries:
            if is_private(entry.name):
                continue
            if _leads_to_directory(entry):
                below = identity(entry.path)
                if below:
                    self._directory(entry.path, f"{prefix}{entry.name}/", below)
            elif entry.name.endswith(SUFFIXES):
                self._file(entry, prefix + entry.name)

    def _file(self, entry: os.DirEntry[str], name: str) -> None:
        try:
            if entry.is_symlink():
                home = os.path.dirname(os.path.realpath(entry.path))  # noqa: PTH120
                there = identity(home)
                if there and there not in self.directories.values():
                    self.directories[home] = there
            status = entry.stat()
        except OSError:
            self.files[name] = 0
            return
        this = (status.st_dev, status.st_ino)
        if this not in self._seen:
            self._seen.add(this)
            self.files[name] = stamp(status)


def _leads_to_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
