"""The six system calls that Python 3.11 does not have.

``os.unshare`` and ``os.setns`` arrived with 3.12; ``mount``, ``umount2``, ``prctl`` and
``pidfd_getfd`` never did.
"""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWNET = 0x40000000

MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PIDFD_GETFD = 438  # on all architectures
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces (``unshare(2)``)."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind ``fd`` (``setns(2)``)."""
    _check(_libc.setns(fd, kind), "setns")


def mount(
    source: str, target: str, filesystem: str | None, flags: int = 0, *, options: str = ""
) -> None:
    """Mount something (``mount(2)``); ``options`` are the file system's own."""
    kind = filesystem.encode() if filesystem is not None else None
    data = options.encode() or None
    result = _libc.mount(source.encode(), target.encode(), kind, ctypes.c_ulong(flags), data)
    _check(result, f"mount {filesystem or source} on {target}")


def unmount(target: str) -> None:
    """Detach a mount at once, even while it is in use (``umount2(2)``)."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def die_with_parent(signal_number: int) -> None:
    """Ask for a signal when the parent *thread* ends (``prctl(2)``, PR_SET_PDEATHSIG)."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal_number), 0, 0, 0), "prctl")


def pidfd_getfd(process: int, number: int) -> int:
    """Return a descriptor of what another process has open as ``number`` (``pidfd_getfd(2)``).

    ``process`` is a pidfd. Needs CAP_SYS_PTRACE for processes of other users.
    """
    descriptor = int(_libc.syscall(_PIDFD_GETFD, process, number, 0))
    _check(descriptor, "pidfd_getfd")
    return descriptor
