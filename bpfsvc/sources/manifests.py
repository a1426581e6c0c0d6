"""A directory of manifests as a source: no cluster needed.

The watch is set up before the first look, and a look follows every new watch, so no change falls
in between. A change of a plain file is read from its event alone; whatever else happens (to a
directory, a link, a name from elsewhere) leads to a walk, which compares everything and cannot be
wrong. A walk every half minute makes up for events that the kernel dropped, or that a network file
system never sent.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.sources import Batch, SourceUnavailable
from bpfsvc.sources.files import Stopped
from bpfsvc.sources.holdings import Difference
from bpfsvc.sources.shelf import Change, Shelf
from bpfsvc.sources.tree import Tree, identity, is_manifest, walk
from bpfsvc.sources.watcher import Events, Watcher

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
"""How often the directory itself is asked whether it is still the same one."""

_BLIND_SECONDS = 1.0
_WALK_SECONDS = 30.0
_BLIND_WARNING = (
    "no events from the file system (%s): changes are looked for every second; "
    "raise fs.inotify.max_user_instances and fs.inotify.max_user_watches"
)
_NOTHING_NEW = Difference((), ())


class Manifests:
    """The objects in the ``.yaml``, ``.yml`` and ``.json`` files below a directory.

    ``settle`` is how long, in seconds, a file must stay as it is before an error in it, or the loss
    of an object, is believed (see :mod:`bpfsvc.sources.shelf`).
    """

    def __init__(self, directory: Path, *, settle: float = 0.1) -> None:
        self._directory = Path(os.path.abspath(directory))  # noqa: PTH100 - links stay links
        self._settle = settle

    def watch(self, stop: threading.Event) -> Iterator[Batch]:
        """Give batches as files change, until ``stop`` is set.

        Raises :class:`SourceUnavailable` if the directory is missing or cannot be read.
        """
        _check(self._directory)
        return self._batches(stop)

    def absence(self) -> str | None:
        """Say nothing: what is wrong with files is told as problems."""
        return None

    def _batches(self, stop: threading.Event) -> Iterator[Batch]:
        shelf = Shelf(self._directory, self._settle, stop)
        told: Batch | None = None
        try:
            for puts, gone in self._differences(shelf, stop):
                problems = shelf.problems()
                if told is None:
                    if not shelf.is_settled:
                        continue
                    puts, gone = shelf.holdings.everything(), ()
                elif not puts and not gone and problems == told.problems:
                    continue
                yield Batch(puts, gone, complete=True, problems=problems)
                told = Batch((), (), complete=True, problems=problems)
                del puts, gone
        except Stopped:
            return

    def _differences(self, shelf: Shelf, stop: threading.Event) -> Iterator[Difference]:
        """Look, watch and look again for as long as it takes."""
        root = str(self._directory)
        directories = [root]
        warned = False
        while not stop.is_set():
            try:
                watcher = Watcher(directories)
            except FileNotFoundError:
                directories = list(walk(self._directory).directories)
                if not directories:
                    yield from self._await_directory(shelf, stop)
                    directories = [root]
                continue
            with watcher:
                if shelf.is_missing:
                    # It is being filled: half of it must not pass for all of it.
                    watcher.wait_for_quiet(self._settle, stop)
                tree = walk(self._directory)
                if root not in tree.walked:
                    directories = [root]
                    continue
                shelf.is_missing = False
                yield shelf.compare(tree)
                tree = tree.without_files()
                if watcher.blindness:
                    if not warned:
                        _log.warning(_BLIND_WARNING, watcher.blindness)
                    warned = True
                    stop.wait(shelf.patience(_BLIND_SECONDS))
                elif set(directories) == tree.directories.keys():
                    yield from self._follow(watcher, tree, shelf, stop)
            if not stop.is_set():
                directories = list(walk(self._directory).directories) or [root]

    def _follow(
        self, watcher: Watcher, tree: Tree, shelf: Shelf, stop: threading.Event
    ) -> Iterator[Difference]:
        """Follow events until other directories must be watched."""
        root = str(self._directory)
        next_walk = time.monotonic() + _WALK_SECONDS
        while not stop.is_set():
            events = watcher.wait(shelf.patience(_LOOK_SECONDS), stop)
            if identity(root) != tree.directories.get(root):
                return
            changes = _changes(events, tree)
            now = time.monotonic()
            if changes is None or now >= next_walk:
                next_walk = now + _WALK_SECONDS
                found = walk(self._directory)
                if root not in found.walked:
                    return
                yield shelf.compare(found)
                if found.directories != tree.directories or not events.keys().isdisjoint(
                    tree.directories
                ):
                    return
                tree = found = found.without_files()
            elif changes or not shelf.is_settled:
                yield shelf.take(changes | shelf.due())

    def _await_directory(self, shelf: Shelf, stop: threading.Event) -> Iterator[Difference]:
        """Wait for the directory to come back; report it missing if that takes long."""
        patience = time.monotonic() + self._settle
        while identity(self._directory) is None and not stop.is_set():
            if not shelf.is_missing and time.monotonic() >= patience:
                shelf.is_missing = True
                yield _NOTHING_NEW
            stop.wait(self._settle / 4)
        # However short it was away, it may be coming back file by file.
        shelf.is_missing = True


def _check(directory: Path) -> None:
    try:
        os.scandir(directory).close()
    except FileNotFoundError:
        raise SourceUnavailable(
            f"the directory of manifests {directory} does not exist",
            "create it, or name another one with --manifests",
        ) from None
    except NotADirectoryError:
        raise SourceUnavailable(
            f"{directory} is not a directory",
            "name the directory that holds the manifests with --manifests",
        ) from None
    except OSError as error:
        raise SourceUnavailable(
            f"the directory of manifests {directory} cannot be read: {error.strerror}",
            "let the user of bpfsvc read and enter it",
        ) from error


def _changes(events: Events, tree: Tree) -> dict[str, Change] | None:
    """Give the files that events name; ``None`` if only a walk can tell."""
    changes: dict[str, Change] = {}
    for path, came_into_place in events.items():
        parent, _, base = path.rpartition("/")
        prefix = tree.walked.get(parent)
        if prefix is None or path in tree.walked or path in tree.directories:
            return None
        try:
            status = os.lstat(path)
        except OSError:
            status = None
        if is_manifest(base):
            if status is not None and not _is_plain(status):
                return None
            changes[prefix + base] = "replaced" if came_into_place else "written"
        elif status is not None and not stat.S_ISREG(status.st_mode):
            return None
    return changes


def _is_plain(status: os.stat_result) -> bool:
    """Tell whether this is a file under its only name."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1
