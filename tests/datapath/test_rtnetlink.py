"""Lists that change while the kernel writes them, and refusals, without a kernel."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest

from bpfsvc.datapath.netlink.rtnetlink import (
    DumpInterrupted,
    NetlinkError,
    Rtnetlink,
    link_request,
    rtnl,
)

NLMSG_DONE, NLM_F_DUMP_INTR = 3, 0x10


class Answer(dict[str, Any]):
    """A message as pyroute2 decodes it: its header, and the bytes it was read from."""

    def __init__(self, kind: int, sequence: int, flags: int = 0, body: bytes = b"") -> None:
        super().__init__(
            header={
                "type": kind,
                "flags": flags,
                "sequence_number": sequence,
                "error": None,
                "length": 16 + len(body),
            }
        )
        self.data, self.offset = bytes(16) + body, 0


class Socket:
    """Answers each request with one link; the first lists are interrupted."""

    def __init__(self, interrupted: int = 0, code: int = 0) -> None:
        self.requests = 0
        self._interrupted = interrupted
        self._code = code
        self._sequence = 0

    def put(self, *_: object, msg_seq: int) -> None:
        self.requests += 1
        self._sequence = msg_seq

    def get(self) -> list[Answer]:
        flags = NLM_F_DUMP_INTR if self.requests <= self._interrupted else 0
        return [
            Answer(rtnl.RTM_NEWLINK, self._sequence - 1),
            Answer(rtnl.RTM_NEWLINK, self._sequence, flags),
            Answer(NLMSG_DONE, self._sequence, body=struct.pack("=i", self._code)),
        ]


def listed(socket: Socket) -> list[Any]:
    return Rtnetlink(socket).list(link_request(), rtnl.RTM_GETLINK)


def test_answers_to_an_earlier_request_are_skipped() -> None:
    socket = Socket()
    assert len(listed(socket)) == 1
    assert socket.requests == 1


def test_an_interrupted_list_is_read_again() -> None:
    socket = Socket(interrupted=2)
    assert [answer["header"]["flags"] for answer in listed(socket)] == [0]
    assert socket.requests == 3


def test_a_list_that_never_stops_changing_is_an_error() -> None:
    with pytest.raises(DumpInterrupted, match="kept changing"):
        listed(Socket(interrupted=1000))


def test_the_error_at_the_end_of_a_list_is_raised() -> None:
    """The kernel writes it without an explanation, and pyroute2 does not read it then."""
    with pytest.raises(NetlinkError) as caught:
        listed(Socket(code=-errno.ENODEV))
    assert caught.value.code == errno.ENODEV
