"""UDP sockets of the node that the hooks have connected to a backend (``bpf/path/socket/lb.h``)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from socket import ntohs

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.sock_diag import UdpSocket, destroy_udp, udp_sockets
from bpfsvc.datapath.socket_owners import connect_anew
from bpfsvc.services.entries import Place

_FIELDS = ("frontend", "backend", "frontend_port", "backend_port")

_log = logging.getLogger("bpfsvc")


class UdpSocketsMap:
    """The map ``udp_sockets``: frontend and backend of each socket, by its cookie."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the map; raise :class:`KernelError` if its layout is not the one known here."""
        self._map = pinned.map("udp_sockets")
        layout = pinned.layout.maps["udp_sockets"]
        self._value = layout.value.expect("the values of map udp_sockets", _FIELDS)
        self._not_seen: set[bytes] = set()

    def move(self, is_stale: Callable[[Place, Place], bool]) -> int:
        """Connect sockets anew that have the wrong backend for their frontend, or close them.

        ``is_stale(frontend, backend)``: True for a wrong backend. Returns how many were closed; a
        failure is logged and returns 0.
        """
        try:
            stale = {
                opened: frontend
                for opened in udp_sockets()
                if (frontend := self._frontend(opened)) and is_stale(frontend, opened.peer)
            }
            if not stale:
                return 0
            closed = destroy_udp(stale.keys() - connect_anew(stale))
        except OSError as error:
            _log.warning("UDP sockets cannot be closed: %s", os.strerror(error.errno or 0))
            return 0
        if closed:
            _log.info(
                "%d connected UDP sockets were closed, as their backend is gone; they would be"
                " moved to another if the agent saw the processes of the node (hostPID) and had"
                " CAP_SYS_PTRACE",
                closed,
            )
        return closed

    def _frontend(self, opened: UdpSocket) -> Place | None:
        """Return the frontend that a socket is connected through, if it is."""
        value = self._map.lookup(_key(opened.cookie))
        if value is None:
            return None
        frontend, backend, port, backend_port = self._value.unpack(value)
        # Without a backend: by an earlier build. Else its owner may have connected it elsewhere.
        if backend_port and opened.peer != (backend, ntohs(backend_port)):
            return None
        return frontend, ntohs(port)

    def forget_closed(self) -> None:
        """Delete the entries of sockets that are missing now and were missing the last time.

        Once is not enough: a socket that is about to connect has an entry before it has a port.
        """
        keys = {key for key, _ in self._map.items()}
        if not keys:
            return
        try:
            not_seen = keys - {_key(opened.cookie) for opened in udp_sockets()}
        except OSError:
            return
        self._map.delete_many(list(not_seen & self._not_seen))
        self._not_seen = not_seen - self._not_seen


def _key(cookie: int) -> bytes:
    return cookie.to_bytes(8, sys.byteorder)
