"""A directory of manifests as a source of objects: no cluster needed.

The watch is set up before the walk, and a walk follows every new watch, so no change falls in
between. Each event leads to a walk, which compares all files and reads those that differ: 10,000
files take 50 ms. A walk every half minute makes up for events that the kernel dropped, or that a
network file system never sent.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path

from bpfsvc.kube.manifests.documents import Stopped
from bpfsvc.kube.manifests.files import Difference, FileCache
from bpfsvc.kube.manifests.tree import ManifestTree, identity, walk
from bpfsvc.kube.manifests.watcher import Watcher
from bpfsvc.kube.source import Batch, SourceUnavailable
from bpfsvc.model import Node, ObjectKey, Pod, PodPlace

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.25
"""How often it is checked that the directory is still the same one."""

_BLIND_SECONDS = 1.0
_WALK_SECONDS = 30.0
_BLIND_WARNING = (
    "no events from the file system (%s): changes are looked for every second; "
    "raise fs.inotify.max_user_instances and fs.inotify.max_user_watches"
)


class ManifestSource:
    """The objects in the ``.yaml``, ``.yml`` and ``.json`` files below a directory.

    ``settle`` is how long, in seconds, a file must stay as it is before an error in it, or the loss
    of an object, is believed (see :mod:`bpfsvc.kube.manifests.files`).
    """

    def __init__(self, directory: Path, *, settle: float = 0.1) -> None:
        self._directory = Path(os.path.abspath(directory))  # noqa: PTH100 - links stay links
        self._root = str(self._directory)
        self._settle = settle

    def follow(self, stop: threading.Event, put: Callable[[Batch], None]) -> None:
        """Put what :meth:`watch` returns."""
        for batch in self.watch(stop):
            put(batch)
            del batch  # the first one names every object

    def watch(self, stop: threading.Event) -> Generator[Batch]:
        """Return batches as files change, until ``stop`` is set.

        Raises :class:`SourceUnavailable` if the directory is missing or cannot be read.
        """
        _check(self._directory)
        return self._batches(stop)

    def outage(self) -> str | None:
        """Return ``None``: faults of files are reported as problems."""
        return None

    def find_pod(self, namespace: str, name: str) -> PodPlace | None:
        """Read the files anew, and return where the Pod is; raise as :meth:`watch`."""
        objects = {item.key: item for item in self.read().puts}
        pod = objects.get(ObjectKey("Pod", namespace, name))
        if not isinstance(pod, Pod):
            return None
        node = objects.get(ObjectKey("Node", "", pod.node))
        if pod.addresses or not isinstance(node, Node):
            return PodPlace(pod.node, pod.addresses, on_host_network=False)
        return PodPlace(pod.node, node.addresses, on_host_network=True)

    def read(self) -> Batch:
        """Return everything as it is now; raise :class:`SourceUnavailable` as :meth:`watch`."""
        with closing(self.watch(threading.Event())) as batches:
            return next(batches)

    def _batches(self, stop: threading.Event) -> Generator[Batch]:
        cache = FileCache(self._directory, self._settle, stop)
        last: Batch | None = None
        try:
            for puts, gone in self._differences(cache, stop):
                problems = cache.problems()
                if last is None:
                    if not cache.is_settled:
                        continue
                    puts, gone = tuple(cache.objects.values()), ()
                elif not puts and not gone and problems == last.problems:
                    continue
                yield Batch(puts, gone, complete=True, problems=problems)
                last = Batch((), (), complete=True, problems=problems)
                del puts, gone
        except Stopped:
            return

    def _differences(self, cache: FileCache, stop: threading.Event) -> Iterator[Difference]:
        """Walk, watch, and walk again until every directory is watched; then follow events."""
        warned = False
        tree = ManifestTree({}, {self._root: 0}, ())
        while not stop.is_set():
            if not tree.exists:
                yield from self._await_directory(cache, stop)
                tree = walk(self._directory)
                continue
            watched = tree.directories.keys()
            try:
                watcher = Watcher(watched or (self._root,))
            except FileNotFoundError:
                tree = walk(self._directory)
                continue
            with watcher:
                if cache.is_missing:
                    # It is being filled: half of it must not pass for all of it.
                    watcher.wait_for_quiet(self._settle, stop)
                tree = walk(self._directory)
                if not tree.exists:
                    continue
                cache.is_missing = False
                yield cache.compare(tree)
                tree = tree.without_files()
                if watcher.blindness:
                    if not warned:
                        _log.warning(_BLIND_WARNING, watcher.blindness)
                    warned = True
                    stop.wait(cache.until_due(_BLIND_SECONDS))
                elif watched == tree.directories.keys():
                    yield from self._follow(watcher, tree, cache, stop)
                    tree = walk(self._directory)

    def _follow(
        self, watcher: Watcher, tree: ManifestTree, cache: FileCache, stop: threading.Event
    ) -> Iterator[Difference]:
        """Follow events until other directories must be watched."""
        next_walk = time.monotonic() + _WALK_SECONDS
        while not stop.is_set():
            events = watcher.wait(cache.until_due(_CHECK_SECONDS), stop)
            if identity(self._root) != tree.directories.get(self._root):
                return
            now = time.monotonic()
            if not events and now < next_walk and (cache.is_settled or cache.until_due(1.0)):
                continue
            next_walk = now + _WALK_SECONDS
            current = walk(self._directory)
            if not current.exists:
                return
            yield cache.compare(current)
            if current.directories != tree.directories or not events.isdisjoint(tree.directories):
                return

    def _await_directory(self, cache: FileCache, stop: threading.Event) -> Iterator[Difference]:
        """Wait for the directory to come back; report it missing if that takes long."""
        report_at = time.monotonic() + self._settle
        while identity(self._root) is None and not stop.is_set():
            if not cache.is_missing and time.monotonic() >= report_at:
                cache.is_missing = True
                yield Difference()
            stop.wait(self._settle / 4)
        # However short it was away, it may be coming back file by file.
        cache.is_missing = True


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
