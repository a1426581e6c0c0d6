"""Where rows come from: the pinned maps, or in tests a dictionary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bpfsvc.datapath.layout import Layout
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.errors import KernelError, SystemUnfit


class Reader(Protocol):
    """Raw rows by the name of the map. A per-CPU value is the values of all CPUs end to end."""

    @property
    def layout(self) -> Layout:
        """What the bytes mean."""

    def rows(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Read a whole map, in the order of the kernel."""

    def row(self, name: str, key: bytes) -> bytes | None:
        """Read one value."""

    def count(self, name: str) -> int:
        """Count the rows of a map."""


class PinnedReader:
    """Reads what is pinned."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        self.layout = pinned.layout

    def rows(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Read a whole map."""
        return self._pinned.map(name).items()

    def row(self, name: str, key: bytes) -> bytes | None:
        """Read one value."""
        return self._pinned.map(name).lookup(key)

    def count(self, name: str) -> int:
        """Count the rows of a map."""
        return self._pinned.map(name).count()


@contextmanager
def open_pinned(root: PinRoot) -> Iterator[Pinned]:
    """Open the build in force at ``root``.

    Raises ``NotLoaded`` if there is none, ``SystemUnfit`` without the right to look, and
    ``KernelError`` for a place that holds something else.
    """
    with reading(root.path):
        pinned = Pinned(root.current)
        try:
            yield pinned
        finally:
            pinned.close()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name the place and the way out when the system refuses to let it be read."""
    try:
        yield
    except PermissionError as error:
        raise SystemUnfit(
            f"cannot read what is pinned at {path}: {error.strerror}",
            "run as root (or with CAP_BPF and CAP_NET_ADMIN)",
        ) from error
    except BrokenPipeError:
        raise  # the reader of our output has gone; nothing is wrong with the pins
    except OSError as error:
        raise KernelError(
            f"cannot read what is pinned at {path}: {error.strerror}",
            "remove what is there with: bpfsvc cleanup, or name another place with --pin-root",
        ) from error
