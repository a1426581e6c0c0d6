"""List the UDP sockets of a network namespace, and close some (sock_diag(7), SOCK_DESTROY).

After one is closed here, the next call of its owner fails (ECONNABORTED, or EDESTADDRREQ for a
send), and resolvers then connect again.

The requests are written here: pyroute2 0.9.7 cannot destroy sockets, and to list 2,000 takes it
106 ms, where this takes 4 ms.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bpfsvc.base.address import V4_PREFIX
from bpfsvc.services.entries import Place

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _SOCK_DESTROY = 20, 21
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _ACK, _DUMP = 1, 4, 0x300

_HEADER = struct.Struct("=IHHII")
_ALL_STATES = 0xFFFFFFFF
_REQUEST_HEAD = struct.Struct("=BBBxI")
_ID_BYTES = 48
"""``struct inet_diag_sockid``: ports, addresses, interface, cookie."""

_PORT_AT, _ADDRESS_AT = 2, 20
"""Offsets in it of the peer's port and address."""

_COOKIE_AT = 40

_ID_AT, _INODE_AT = 4, 68
"""Offsets in ``struct inet_diag_msg``, of it and of the inode."""

_BUFFER = 1 << 16


class UdpSocket(NamedTuple):
    """A UDP socket that has a port. ``sockid`` is the kernel's name of it; ``inode`` that of its
    descriptors.
    """

    family: int
    sockid: bytes
    inode: int

    @property
    def cookie(self) -> int:
        """The number that no other socket ever has."""
        return _cookie(self.sockid)

    @property
    def peer(self) -> Place:
        """Where it is connected to; zeros if it is not."""
        return _peer(self.family, self.sockid)


def udp_sockets() -> list[UdpSocket]:
    """Return the UDP sockets of this network namespace that are bound to a port."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
        return [
            UdpSocket(family, *found)
            for family in (socket.AF_INET, socket.AF_INET6)
            for found in _sockets(diag, family)
        ]


def destroy_udp(sockets: Iterable[UdpSocket]) -> int:
    """Close some sockets of this network namespace.

    Returns their number; 0 on kernels that cannot do it (CONFIG_INET_DIAG_DESTROY).
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as diag:
        return sum(_destroy(diag, each.family, each.sockid) for each in sockets)


def _sockets(diag: socket.socket, family: int) -> Iterator[tuple[bytes, int]]:
    """Yield the kernel's name of each socket, and its inode."""
    diag.send(_message(_SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, family, bytes(_ID_BYTES)))
    while True:
        data = diag.recv(_BUFFER)
        while data:
            size, kind, _, _, _ = _HEADER.unpack_from(data)
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                return
            start = _HEADER.size + _ID_AT
            (inode,) = struct.unpack_from("=I", data, _HEADER.size + _INODE_AT)
            yield data[start : start + _ID_BYTES], inode
            data = data[(size + 3) & ~3 :]


def _cookie(sockid: bytes) -> int:
    return int(struct.unpack_from("=Q", sockid, _COOKIE_AT)[0])


def _peer(family: int, sockid: bytes) -> Place:
    (port,) = struct.unpack_from("!H", sockid, _PORT_AT)
    address = sockid[_ADDRESS_AT : _ADDRESS_AT + 16]
    return (V4_PREFIX + address[:4] if family == socket.AF_INET else address), port


def _destroy(diag: socket.socket, family: int, sockid: bytes) -> bool:
    diag.send(_message(_SOCK_DESTROY, _REQUEST | _ACK, family, sockid))
    answer = diag.recv(_BUFFER)
    (number,) = struct.unpack_from("=i", answer, _HEADER.size)
    if number in (0, -errno.ENOENT, -errno.EOPNOTSUPP):
        return bool(number == 0)
    raise OSError(-number, "a socket cannot be closed")


def _message(kind: int, flags: int, family: int, sockid: bytes) -> bytes:
    body = _REQUEST_HEAD.pack(family, socket.IPPROTO_UDP, 0, _ALL_STATES) + sockid
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body
