"""The source of raw entries: pinned maps, or dictionaries in tests."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bpfsvc.base.errors import KernelError, SystemUnfit
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.maps.tcp_sockets import NodeSocket, TcpSockets


class Reader(Protocol):
    """Raw entries by the name of the map. A per-CPU value is the values of all CPUs end to end."""

    @property
    def layout(self) -> Layout:
        """The layout of all maps."""

    def entries(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a map as key and value, in the order of the kernel."""

    def value(self, name: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if there is none."""

    def count(self, name: str) -> int:
        """Return the number of entries of a map."""

    def node_sockets(self) -> Collection[NodeSocket] | None:
        """Return each TCP socket here that the socket LB translated; None without a list."""


class PinnedReader:
    """Reads pinned maps."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        self.layout = pinned.layout

    def entries(self, name: str) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a map as key and value."""
        return self._pinned.map(name).items()

    def value(self, name: str, key: bytes) -> bytes | None:
        """Return the value of a key, None if there is none."""
        return self._pinned.map(name).lookup(key)

    def count(self, name: str) -> int:
        """Return the number of entries of a map."""
        return self._pinned.map(name).count()

    def node_sockets(self) -> Collection[NodeSocket] | None:
        """Return each TCP socket here that the socket LB translated."""
        if not {"socket_translations", "socket_overflow"} <= self.layout.maps.keys():
            return None
        try:
            return TcpSockets(self._pinned).connected()
        except (KernelError, OSError):
            return None


@contextmanager
def open_pinned(root: PinRoot) -> Iterator[Pinned]:
    """Open the build in force at ``root``.

    Raises ``NotLoaded`` if there is none, ``SystemUnfit`` without the right to read it, and
    ``KernelError`` if the pins are not bpfsvc's.
    """
    with reading(root.path):
        pinned = Pinned(root.current)
        try:
            yield pinned
        finally:
            pinned.close()


def is_running(root: PinRoot) -> bool:
    """True if an agent has the lock of ``root``, as a running one does.

    The shared lock tried here is released after microseconds.
    """
    with reading(root.path):
        fd = os.open(root.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a system error while reading ``path`` into an error that says what to do."""
    try:
        yield
    except PermissionError as error:
        raise SystemUnfit(
            f"cannot read the pins at {path}: {error.strerror}",
            "run as root (or with CAP_BPF and CAP_NET_ADMIN)",
        ) from error
    except BrokenPipeError:
        raise  # the program that reads our output has ended: no fault of the pins
    except OSError as error:
        raise KernelError(
            f"cannot read the pins at {path}: {error.strerror}",
            "remove the pins with: bpfsvc cleanup, or choose another --pin-root",
        ) from error
