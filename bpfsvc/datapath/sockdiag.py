"""Closing UDP sockets that are connected to a backend that is gone (sock_diag(7), SOCK_DESTROY).

A connected UDP socket was translated once, when it connected, and sends to that backend for good.
Its owner is told by an error at the next call (ECONNABORTED, or EDESTADDRREQ for a send), and
resolvers and the like then connect anew.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator

from bpfsvc.address import V4_PREFIX
from bpfsvc.rows import Place

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
"""Where in it the peer's port and address are."""

_COOKIE_AT = 40

_ID_AT = 4
"""Where it stands in ``struct inet_diag_msg``."""

_BUFFER = 1 << 16


def live_udp() -> set[int]:
    """Give the cookies of the UDP sockets of this network namespace that are bound to a port."""
    found: set[int] = set()
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as talk:
        for family in (socket.AF_INET, socket.AF_INET6):
            found.update(map(_cookie, _sockets(talk, family)))
    return found


def destroy_udp(is_lost: Callable[[Place, int], bool]) -> int:
    """Close UDP sockets of this network namespace, by the place of their peer and their cookie.

    Give their number; none on kernels that cannot do it (CONFIG_INET_DIAG_DESTROY).
    """
    closed = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as talk:
        for family in (socket.AF_INET, socket.AF_INET6):
            every = list(_sockets(talk, family))
            for sockid in [one for one in every if is_lost(_peer(family, one), _cookie(one))]:
                closed += _destroy(talk, family, sockid)
    return closed


def _sockets(talk: socket.socket, family: int) -> Iterator[bytes]:
    talk.send(_message(_SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, family, bytes(_ID_BYTES)))
    while True:
        data = talk.recv(_BUFFER)
        while data:
            size, kind, _, _, _ = _HEADER.unpack_from(data)
            if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                return
            yield data[_HEADER.size + _ID_AT : _HEADER.size + _ID_AT + _ID_BYTES]
            data = data[(size + 3) & ~3 :]


def _cookie(sockid: bytes) -> int:
    return int(struct.unpack_from("=Q", sockid, _COOKIE_AT)[0])


def _peer(family: int, sockid: bytes) -> Place:
    (port,) = struct.unpack_from("!H", sockid, _PORT_AT)
    address = sockid[_ADDRESS_AT : _ADDRESS_AT + 16]
    return (V4_PREFIX + address[:4] if family == socket.AF_INET else address), port


def _destroy(talk: socket.socket, family: int, sockid: bytes) -> bool:
    talk.send(_message(_SOCK_DESTROY, _REQUEST | _ACK, family, sockid))
    answer = talk.recv(_BUFFER)
    (number,) = struct.unpack_from("=i", answer, _HEADER.size)
    if number in (0, -errno.ENOENT, -errno.EOPNOTSUPP):
        return bool(number == 0)
    raise OSError(-number, "a socket cannot be closed")


def _message(kind: int, flags: int, family: int, sockid: bytes) -> bytes:
    body = _REQUEST_HEAD.pack(family, socket.IPPROTO_UDP, 0, _ALL_STATES) + sockid
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body
