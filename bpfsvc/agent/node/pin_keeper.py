"""The pins, while an agent runs: it holds the pinned objects, and pins them again if necessary.

Someone may remove the pins, or unmount their file system. The kernel detaches a link without a
reference at once, and a map of programs loses its entries. So the agent has a descriptor of each
pinned object: as long as the agent runs nothing ends, and objects that are pinned again outlive it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from bpfsvc.agent.reports import Reports
from bpfsvc.base.errors import BpfsvcError, SystemUnfit
from bpfsvc.base.syscalls import mount
from bpfsvc.base.texts import count_text
from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.maps.pins import Pinned, PinRoot, is_bpffs
from bpfsvc.metrics.observer import Observer

_log = logging.getLogger("bpfsvc")

_FIRST_READ = "layout"
"""The map by which readers recognise a pinned build: it is pinned last."""


class PinKeeper:
    """Keeps the pins of one build in force, and of the links. Belongs to the agent's thread."""

    def __init__(self, root: PinRoot, pinned: Pinned) -> None:
        """Hold the build, which must be in force, and all pinned links."""
        self._root = root
        self._pinned = pinned
        self._mounted_at = _mount_point(root.path)
        self._programs = sorted(_names(root.current / "programs"))
        for name in pinned.layout.maps:
            pinned.map(name)
        for name in self._programs:
            pinned.program(name)
        self._links: dict[str, tuple[int, int]] = {}
        """Name of the pin -> its inode number, and a descriptor of the link."""
        self._lock = 0
        self._inode = _inode(root.path)
        self.hold_links()

    def hold_links(self) -> None:
        """Hold the links that are pinned now; this agent has removed all others."""
        present = {}
        with suppress(FileNotFoundError), os.scandir(self._root.links) as pins:
            present = {pin.name: pin.inode() for pin in pins}
        for name, (inode, link) in list(self._links.items()):
            if present.get(name) != inode:
                os.close(link)
                del self._links[name]
        for name, inode in present.items():
            if name not in self._links:
                self._links[name] = inode, syscall.get(self._root.links / name)

    def missing(self) -> int:
        """Return how many pins have been removed."""
        return sum(1 for _ in self._missing_of_build()) + len(self._missing_links())

    def restore(self) -> None:
        """Pin removed objects again; raise :class:`BpfsvcError` where nothing can be pinned."""
        try:
            self._create_root()
            if any(self._missing_of_build()):
                self._pin_build()
            self._root.links.mkdir(exist_ok=True)
            for name in self._missing_links():
                self._pin_link(name)
        except OSError as error:
            raise BpfsvcError(
                f"nothing can be pinned at {self._root.path}: {error.strerror}",
                "mount -t bpf bpf /sys/fs/bpf, where the pins are kept",
            ) from error

    def _pin_link(self, name: str) -> None:
        pin = self._root.links / name
        _, link = self._links[name]
        syscall.pin(link, pin)
        self._links[name] = pin.stat().st_ino, link

    def _create_root(self) -> None:
        """Make the directory of the pins, and lock it if it is a new one."""
        try:
            self._root.create()
        except SystemUnfit:
            mount("bpf", str(self._mounted_at), "bpf")
            self._root.create()
        inode = _inode(self._root.path)
        if inode == self._inode:
            return
        lock = self._root.lock()
        if self._lock:
            os.close(self._lock)
        self._lock, self._inode = lock, inode

    def _pin_build(self) -> None:
        """Pin all of the build beside its remains, then put it in their place."""
        self._root.discard_next()
        maps, programs = self._root.next / "maps", self._root.next / "programs"
        maps.mkdir(parents=True)
        programs.mkdir()
        for name in self._programs:
            syscall.pin(self._pinned.program(name), programs / name)
        for name in sorted(self._pinned.layout.maps, key=_FIRST_READ.__eq__):
            syscall.pin(self._pinned.map(name).fd, maps / name)
        self._root.promote_next()
        self._root.discard_others()

    def _missing_of_build(self) -> Iterator[str]:
        current = self._root.current
        yield from set(self._pinned.layout.maps) - _names(current / "maps")
        yield from set(self._programs) - _names(current / "programs")

    def _missing_links(self) -> set[str]:
        return self._links.keys() - _names(self._root.links)


class PinWatch:
    """Has pins restored and reported; belongs to the agent's thread."""

    def __init__(self, installation: Installation, metrics: Observer, reports: Reports) -> None:
        self._root = installation.root
        self._pinned = installation.pinned
        self._metrics = metrics
        self._reports = reports
        self._keeper: PinKeeper | None = None
        self._error = ""

    def begin(self) -> None:
        """Watch from now on: the build is in force."""
        self._keeper = PinKeeper(self._root, self._pinned)

    @property
    def is_broken(self) -> bool:
        """True while pins are missing and nothing can be pinned."""
        return bool(self._error)

    def hold_links(self) -> None:
        """Hold the links that are pinned now."""
        if self._keeper and not self._error:
            self._keeper.hold_links()

    def check(self) -> None:
        """Pin again what another program unpinned; until then, attach nothing by pins."""
        if self._keeper is None or not (missing := self._keeper.missing()):
            return
        pins = f"{count_text(missing, 'pin')} of {self._root.path}"
        try:
            self._keeper.restore()
        except BpfsvcError as error:
            if self._error != str(error):
                self._error = str(error)
                _log.error("%s removed and cannot be restored: %s", pins, error)
            text = f"{pins} are missing; Services stop with this agent: {error}"
            self._reports.note("pins", text)
            return
        self._error = ""
        self._reports.note("pins", None)
        _log.warning("%s removed by another program; pinned again", pins)
        self._metrics.pins_lost(missing)


def _names(directory: Path) -> set[str]:
    try:
        with os.scandir(directory) as pins:
            return {pin.name for pin in pins}
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        return set()


def _inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _mount_point(path: Path) -> Path:
    """Return the mount point of the bpf file system of ``path``."""
    while is_bpffs(path.parent):
        path = path.parent
    return path
