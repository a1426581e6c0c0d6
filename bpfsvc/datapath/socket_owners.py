"""Connect sockets of other processes anew, in place: for their owners nothing changes.

The kernel never asks again where a connected UDP socket sends to, so the programs cannot change its
backend. But a process with a descriptor of the socket can call connect() for it, and the programs
then choose a backend as they do for the owner. The agent needs a copy of the owner's descriptor: so
the agent has to see the processes of the node, and needs the rights of a debugger
(CAP_SYS_PTRACE).
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from bpfsvc.base.address import unpack
from bpfsvc.base.syscalls import pidfd_getfd
from bpfsvc.datapath.netlink.sock_diag import UdpSocket
from bpfsvc.services.entries import Place

_SO_COOKIE = 57
_PROCESSES = Path("/proc")
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_INODE = re.compile(r"^ino:\s*(\d+)$", re.MULTILINE)


def connect_anew(sockets: Mapping[UdpSocket, Place]) -> set[UdpSocket]:
    """Connect each socket to its backend; return the sockets for which that succeeded."""
    by_inode = {socket_.inode: socket_ for socket_ in sockets}
    moved: set[UdpSocket] = set()
    for inode, process, number in _descriptors(by_inode):
        socket_ = by_inode[inode]
        if socket_ in moved:
            continue
        with suppress(OSError):
            _connect(process, number, socket_, sockets[socket_])
            moved.add(socket_)
        if len(moved) == len(by_inode):
            break
    return moved


def _descriptors(inodes: Collection[int]) -> Iterator[tuple[int, int, int]]:
    """Yield each inode with a process and its descriptor; a shared inode with every process."""
    wanted = frozenset(inodes)
    for process in _PROCESSES.iterdir():
        if not process.name.isdigit():
            continue
        # The process may have ended, or the agent may not look at it.
        with suppress(OSError):
            for number, inode in _files(process):
                if inode in wanted:
                    yield inode, int(process.name), number


def _files(process: Path) -> Iterator[tuple[int, int]]:
    """Yield the descriptors of a process with their inodes: of sockets only, or of all files.

    The folder ``fd`` is quick to read, but belongs to the user of the process; ``fdinfo`` asks for
    the right to debug alone.
    """
    inode_of: Callable[[Path], int | None] = _socket_inode
    try:
        descriptors = list((process / "fd").iterdir())
    except PermissionError:
        descriptors = list((process / "fdinfo").iterdir())
        inode_of = _any_inode
    for path in descriptors:
        with suppress(OSError):
            inode = inode_of(path)
            if inode is not None:
                yield int(path.name), inode


def _socket_inode(link: Path) -> int | None:
    match = _SOCKET.fullmatch(str(link.readlink()))
    return int(match[1]) if match else None


def _any_inode(info: Path) -> int | None:
    match = _INODE.search(info.read_text())
    return int(match[1]) if match else None


def _connect(process: int, number: int, wanted: UdpSocket, to: Place) -> None:
    """Connect a socket of a process; ``OSError`` if the descriptor is another file by now."""
    with _copy(process, number) as copy:
        cookie = copy.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)
        if int.from_bytes(cookie, sys.byteorder) != wanted.cookie:
            raise ProcessLookupError("the socket is closed")
        address = unpack(to[0])
        mapped = f"::ffff:{address}" if "." in address else address
        copy.connect((mapped if copy.family == socket.AF_INET6 else address, to[1]))


@contextmanager
def _copy(process: int, number: int) -> Iterator[socket.socket]:
    """Return a copy of a descriptor of a process, if the descriptor is a socket."""
    pidfd = os.pidfd_open(process)
    try:
        descriptor = pidfd_getfd(pidfd, number)
    finally:
        os.close(pidfd)
    try:
        copy = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with copy:
        yield copy
