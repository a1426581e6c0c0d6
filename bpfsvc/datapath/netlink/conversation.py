"""A netlink socket: ask the kernel one thing, get its answers or its refusal.

Requests are answered before ``sendto`` returns, so a plain blocking socket is all that is needed.
A socket is bound to the network namespace of the thread that opened it and is used by one
thread at a time; opening one costs some twenty microseconds, so callers open one when they need it.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any

from bpfsvc.datapath.netlink import messages as wire
from bpfsvc.errors import KernelError

_HEADER = struct.Struct("=IHHII")
_SOL_NETLINK = 270
_NETLINK_EXT_ACK = 11
_NLMSGERR_ATTR_MSG = 1
_ATTEMPTS = 20


class NetlinkRefused(KernelError):
    """The kernel answered a request with an error. ``code`` is the errno."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{os.strerror(code)}{f': {reason}' if reason else ''}")
        self.code = code


class DumpInterrupted(KernelError):
    """What was being listed kept changing while it was listed."""


class Conversation:
    """An open rtnetlink socket; a context manager."""

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE
        )
        # The kernel's own words for a refusal ("Parent Qdisc doesn't exists") beat a bare EINVAL.
        self._socket.setsockopt(_SOL_NETLINK, _NETLINK_EXT_ACK, 1)
        self._sequence = 0

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def ask(self, kind: int, message: Any, flags: int = 0) -> list[Any]:
        """Send one request of message type ``kind``; give the answers before its acknowledgement.

        Raises :class:`NetlinkRefused`.
        """
        found, _ = self._exchange(self._encoded(kind, message, flags | wire.NLM_F_ACK))
        return [decoded(type(message), raw) for raw in found]

    def dump(self, kind: int, message: Any) -> list[Any]:
        """Send a dump request; give a consistent list of what there is.

        Raises :class:`NetlinkRefused`, or :class:`DumpInterrupted` when the list changed under
        every one of several attempts.
        """
        return [decoded(type(message), raw) for raw in self.dump_raw(kind, message)]

    def dump_raw(self, kind: int, message: Any) -> list[bytes]:
        """Do the same, and leave each message as it came (for :func:`decoded`)."""
        request = self._encoded(kind, message, wire.NLM_F_DUMP)
        for _ in range(_ATTEMPTS):
            found, interrupted = self._exchange(request)
            if not interrupted:
                return found
        raise DumpInterrupted(
            "the kernel's list kept changing while it was read",
            "try again when this node is calmer",
        )

    def _encoded(self, kind: int, message: Any, flags: int) -> bytes:
        self._sequence += 1
        message["header"]["type"] = kind
        message["header"]["flags"] = flags | wire.NLM_F_REQUEST
        message["header"]["sequence_number"] = self._sequence
        message.encode()
        return bytes(message.data)

    def _exchange(self, request: bytes) -> tuple[list[bytes], bool]:
        """Send a request; give its answers, and whether the list of them is torn."""
        self._socket.sendto(request, (0, 0))
        found: list[bytes] = []
        interrupted = False
        while True:
            data = self._socket.recv(1 << 16)
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, answer, flags, sequence, _ = _HEADER.unpack_from(data, offset)
                raw = data[offset : offset + length]
                offset += (length + 3) & ~3
                if sequence != self._sequence:
                    continue
                if answer in (wire.NLMSG_ERROR, wire.NLMSG_DONE):
                    _raise_refusal(raw, answer, flags)
                    return found, interrupted
                interrupted |= bool(flags & wire.NLM_F_DUMP_INTR)
                found.append(raw)


def decoded(form: type[Any], raw: bytes) -> Any:
    """Decode a message; ``form`` is its class in :mod:`bpfsvc.datapath.netlink.messages`."""
    message = form(raw)
    message.decode()
    return message


def _raise_refusal(data: bytes, answer: int, flags: int) -> None:
    """Raise what an NLMSG_ERROR or NLMSG_DONE reports, if it reports an error."""
    (result,) = struct.unpack_from("=i", data, _HEADER.size)
    if result >= 0:
        return
    reason = ""
    if flags & wire.NLM_F_ACK_TLVS:
        # The attributes follow the request that is being answered, or only its header if capped.
        offset = _HEADER.size + 4
        if answer == wire.NLMSG_ERROR:
            (echoed,) = struct.unpack_from("=I", data, offset)
            offset += _HEADER.size if flags & wire.NLM_F_CAPPED else (echoed + 3) & ~3
        while offset + 4 <= len(data):
            length, attribute = struct.unpack_from("=HH", data, offset)
            if attribute == _NLMSGERR_ATTR_MSG:
                reason = data[offset + 4 : offset + length].rstrip(b"\0").decode()
            offset += max(4, (length + 3) & ~3)
    raise NetlinkRefused(-result or errno.EIO, reason)
