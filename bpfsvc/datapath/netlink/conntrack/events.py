"""New entries of netfilter's connection table, as the kernel announces them.

An entry is announced when its first packet leaves the node or reaches a socket, after all
translations, so both 5-tuples are final. A packet that is dropped or refused on its way leaves no
entry and no announcement. Announcements are lost when they come faster than they are read.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import SystemUnfit
from bpfsvc.datapath.netlink.conntrack import messages
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.nlmsg import attributes, read_messages

_GROUP_NEW = 1 << 0
"""NFNLGRP_CONNTRACK_NEW, as a bit of the address of a netlink socket."""

_BUFFER = 1 << 16
_WAITING_BYTES = 8 << 20
"""Announcements that may wait: some ten thousand."""

_SO_RCVBUFFORCE = 33
_MOST_AT_ONCE = 4096
_SWITCH = Path("proc/sys/net/netfilter/nf_conntrack_events")


class NewFlow(NamedTuple):
    """A new entry: the flow as it was opened, and the flow of its answers."""

    original: TranslatedFlow
    reply: TranslatedFlow


class NewFlows:
    """Announcements in the network namespace of the thread that makes this."""

    def __init__(self, root: Path = Path("/"), *, waiting_bytes: int = _WAITING_BYTES) -> None:
        """Subscribe; raise :class:`SystemUnfit` if the kernel announces nothing.

        ``waiting_bytes``: room for announcements that wait to be read.
        """
        if _is_off(root / _SWITCH):
            raise SystemUnfit(
                "netfilter announces no connections: net.netfilter.nf_conntrack_events is 0",
                "set it to 2, the kernel's default",
            )
        self.losses = 0
        """How often announcements were lost."""
        self._socket = messages.connect()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, waiting_bytes)
            self._socket.bind((0, _GROUP_NEW))
        except OSError as error:
            self._socket.close()
            raise SystemUnfit(
                f"netfilter's new connections cannot be followed: {error.strerror}",
                "run as root, or with CAP_NET_ADMIN",
            ) from error
        self._waiting = select.poll()
        self._waiting.register(self._socket, select.POLLIN)

    def close(self) -> None:
        """Subscribe no longer."""
        self._socket.close()

    def read(self, seconds: float) -> list[NewFlow]:
        """Wait for the next announcement; return those that are there, none after ``seconds``."""
        flows: list[NewFlow] = []
        if not self._waiting.poll(1000 * seconds):
            return flows
        while len(flows) < _MOST_AT_ONCE:
            try:
                data = self._socket.recv(_BUFFER, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.losses += 1
                continue
            flows.extend(_read_flows(data))
        return flows


def _is_off(switch: Path) -> bool:
    try:
        return switch.read_text().strip() == "0"
    except FileNotFoundError:
        return False  # the module is not loaded yet; its default is to announce


def _read_flows(data: bytes) -> Iterator[NewFlow]:
    """Yield the new flows that a datagram announces; flows without ports are left out.

    Flows of a conntrack zone are left out: they are another program's, as a virtual switch's.
    """
    for message in read_messages(data):
        if message.kind != messages.NEW:
            continue
        fields = attributes(message.body[messages.FAMILY_BYTES :])
        if messages.ZONE not in fields:
            original = messages.read_tuple(fields[messages.TUPLE_ORIGINAL])
            reply = messages.read_tuple(fields[messages.TUPLE_REPLY])
            if original and reply:
                yield NewFlow(original, reply)
