"""Count the IPsec policies that encrypt what this node sends or forwards.

pyroute2 0.9.7 has no xfrm messages. The numbers stand in ``linux/xfrm.h``; they are ABI.
"""

from __future__ import annotations

import errno
import socket
import struct

from bpfsvc.datapath.netlink.nlmsg import REQUEST, pack_request

_NETLINK_XFRM = 6
_GET_POLICY_COUNTS, _POLICY_COUNTS = 0x25, 0x24
_ALL_FLAGS = 0xFFFFFFFF
_COUNTS = struct.Struct("=III")  # in, out, forward
_COUNTS_AT = 24
"""Offset after ``struct nlmsghdr``, a word of flags, and the header of the first attribute."""

_ABSENT = {errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT}


def count_policies() -> int:
    """Return the number of policies for packets sent or forwarded; 0 in a kernel without IPsec."""
    try:
        connection = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_XFRM
        )
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise
    with connection:
        request = pack_request(_GET_POLICY_COUNTS, REQUEST, struct.pack("=I", _ALL_FLAGS))
        connection.sendto(request, (0, 0))
        return read_counts(connection.recv(1 << 12))


def read_counts(answer: bytes) -> int:
    """Return the number in the kernel's answer; ``OSError`` if it refused."""
    kind, code = struct.unpack_from("=H", answer, 4)[0], struct.unpack_from("=i", answer, 16)[0]
    if kind != _POLICY_COUNTS:
        raise OSError(-code, "IPsec policies cannot be counted")
    _, leaving, forwarded = _COUNTS.unpack_from(answer, _COUNTS_AT)
    return int(leaving + forwarded)
