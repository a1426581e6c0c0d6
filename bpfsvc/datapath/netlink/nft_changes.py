"""Changes of netfilter's rules, as the kernel announces them: nftables, and iptables on top of it.

iptables-legacy announces nothing.
"""

from __future__ import annotations

import errno
import select
import socket
from contextlib import suppress

_NETLINK_NETFILTER = 12
_RULES = 1 << 6
"""The group NFNLGRP_NFTABLES of ``linux/netfilter/nfnetlink.h``, as a bit."""


class NftChanges:
    """Waits for changes; what they are has to be read anew."""

    def __init__(self) -> None:
        """Raises ``OSError`` if this kernel announces nothing."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        try:
            self._socket.bind((0, _RULES))
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def close(self) -> None:
        """Wait no more."""
        self._socket.close()

    def wait(self, seconds: float) -> bool:
        """Return True as soon as something changes, False after so many seconds without."""
        poll = select.poll()  # select() fails with a descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        self._discard()
        return True

    def _discard(self) -> None:
        """Take all announcements that are there; that some were lost says no more than they do."""
        with suppress(BlockingIOError):
            while True:
                try:
                    self._socket.recv(1 << 16)
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise
