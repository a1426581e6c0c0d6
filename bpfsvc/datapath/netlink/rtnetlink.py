"""pyroute2's rtnetlink sockets. The only module of the agent that imports pyroute2.

``import pyroute2`` loads every protocol that the library knows, sqlite among them: 9.4 MB more in
an agent than a bare netlink codec would take. Its sockets and messages alone take 4 MB more,
asyncio included, so its ``__init__`` does not run, and unittest and its mock of the kernel, which
``IPRSocket`` imports for tests of its own, are not loaded.

Messages go through ``IPRSocket``, pyroute2's plain socket: opening it takes 0.17 ms, a request
0.06 ms. ``IPRoute``, which has a method for each kind of request, drives an asyncio loop: 0.4 ms
each. With 250 pods the agent's loop would spend 0.55 s on each check of its tc hooks, where it now
takes 0.05 s, and a new interface would be reported 4 ms later.

Callers open a socket for each task, and use it in one thread. It belongs to the network namespace
in which that thread is at the time.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from bpfsvc.base.errors import KernelError
from bpfsvc.base.lean_import import bare_package, replaced

with (
    replaced("unittest", mock=SimpleNamespace(Mock=object)),
    bare_package("pyroute2"),
    replaced("pyroute2.iproute.ipmock", IPEngine=object),
):
    from pyroute2.netlink import (
        NLM_F_ACK,
        NLM_F_CREATE,
        NLM_F_DUMP,
        NLM_F_DUMP_INTR,
        NLM_F_EXCL,
        NLM_F_REQUEST,
        NLMSG_DONE,
        NLMSG_ERROR,
    )
    from pyroute2.netlink import nla as nla
    from pyroute2.netlink import nlmsg as nlmsg
    from pyroute2.netlink import rtnl as rtnl
    from pyroute2.netlink.exceptions import NetlinkError as NetlinkError
    from pyroute2.netlink.rtnl.fibmsg import fibmsg as fibmsg
    from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg as ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg as ifinfmsg
    from pyroute2.netlink.rtnl.iprsocket import IPRSocket as IPRSocket
    from pyroute2.netlink.rtnl.rtmsg import rtmsg as rtmsg
    from pyroute2.netlink.rtnl.tcmsg import tcmsg as tcmsg

GET = NLM_F_REQUEST | NLM_F_ACK
REMOVE = GET
CREATE = GET | NLM_F_CREATE
CREATE_NEW = CREATE | NLM_F_EXCL
"""Flags of requests; ``CREATE`` replaces what exists, ``CREATE_NEW`` fails if it exists."""

_RTEXT_FILTER_SKIP_STATS = 8
_ATTEMPTS = 20
_HEADER_SIZE = 16  # of struct nlmsghdr

_sequence = itertools.count(1)


class DumpInterrupted(KernelError):
    """The list changed each time while the kernel wrote it."""


@contextmanager
def rtnetlink(policy: Mapping[int, type[Any]] | None = None) -> Iterator[Rtnetlink]:
    """Open a socket; a ``NetlinkError`` inside the block leaves it as ``KernelError``.

    ``policy``: message classes by type of answer, in place of pyroute2's. The kernel explains
    refusals (``ext_ack``) and filters lists by the request's header (``strict_check``).
    """
    with IPRSocket(ext_ack=True, strict_check=True) as opened:
        opened.register_policy(policy or {})
        try:
            yield Rtnetlink(opened)
        except NetlinkError as refusal:
            raise KernelError(reason(refusal)) from refusal


class Rtnetlink:
    """Sends requests and returns their answers; both raise ``NetlinkError`` for a refusal."""

    def __init__(self, opened: IPRSocket) -> None:
        self._socket = opened

    def request(self, message: Any, kind: int, flags: int) -> list[Any]:
        """Send a request of type ``kind`` and return the answers before its acknowledgement."""
        sequence = next(_sequence)
        self._socket.put(message, kind, flags, msg_seq=sequence)
        answers: list[Any] = []
        while True:
            for answer in self._socket.get():
                header = answer["header"]
                if header["sequence_number"] != sequence:
                    continue
                _raise_error(answer)
                if header["type"] in (NLMSG_ERROR, NLMSG_DONE):
                    return answers
                answers.append(answer)

    def list(self, message: Any, kind: int) -> list[Any]:
        """Return a list that did not change while the kernel wrote it.

        pyroute2 0.9.7 defines an exception for an interrupted list and never raises it, so the flag
        is read here. Raises :class:`DumpInterrupted` after 20 attempts.
        """
        for _ in range(_ATTEMPTS):
            answers = self.request(message, kind, NLM_F_REQUEST | NLM_F_DUMP)
            if not any(answer["header"]["flags"] & NLM_F_DUMP_INTR for answer in answers):
                return answers
        raise DumpInterrupted(
            "the kernel's list kept changing while it was read",
            "try again when this node is calmer",
        )


def link_request(index: int = 0) -> ifinfmsg:
    """Return a request for an interface, or for a list of all, without counters.

    The counters are half of each answer.
    """
    request = ifinfmsg()
    request["index"] = index
    request["attrs"] = [("IFLA_EXT_MASK", _RTEXT_FILTER_SKIP_STATS)]
    return request


def _raise_error(answer: Any) -> None:
    """Raise the error of an answer; pyroute2 misses a list's error without an explanation."""
    header = answer["header"]
    if header["error"] is not None:
        raise header["error"]
    if header["type"] == NLMSG_DONE and header["length"] >= _HEADER_SIZE + 4:
        (code,) = struct.unpack_from("=i", answer.data, answer.offset + _HEADER_SIZE)
        if code < 0:
            raise NetlinkError(-code)


def reason(refusal: NetlinkError) -> str:
    """Return the name of the error, and what the kernel wrote about it."""
    name, explained = os.strerror(refusal.code), str(refusal.args[1])
    return name if explained == name else f"{name}: {explained}"
