"""UDP sockets of the node that the hooks have connected to a backend (``bpf/sockets.h``)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from socket import ntohs

from bpfsvc.datapath.pins import Pinned
from bpfsvc.datapath.sockdiag import destroy_udp, live_udp
from bpfsvc.rows import Place

_FIELDS = ("frontend", "frontend_port", "zero")

_log = logging.getLogger("bpfsvc")


class UdpSockets:
    """The map ``udp_sockets``: what each asked for, by its cookie."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the map; raise :class:`KernelError` if its layout is not the one known here."""
        self._map = pinned.map("udp_sockets")
        layout = pinned.layout.maps["udp_sockets"]
        self._row = layout.value.expect("the rows of map udp_sockets", _FIELDS)
        self._not_seen: set[bytes] = set()

    def close(self, is_astray: Callable[[Place, Place], bool]) -> int:
        """Close those whose peer is the wrong backend for what they asked for.

        ``is_astray(frontend, backend)``. Returns how many were closed; 0 where that fails, which
        is logged.
        """

        def is_lost(peer: Place, cookie: int) -> bool:
            row = self._map.lookup(_key(cookie))
            if row is None:
                return False
            frontend, port, _ = self._row.unpack(row)
            return is_astray((frontend, ntohs(port)), peer)

        try:
            return destroy_udp(is_lost)
        except OSError as error:
            _log.warning("UDP sockets cannot be closed: %s", os.strerror(error.errno or 0))
            return 0

    def forget_closed(self) -> None:
        """Remove the rows of sockets that were not there now nor the last time.

        Once is not enough: one that is about to connect has a row before it has a port.
        """
        rows = {key for key, _ in self._map.items()}
        if not rows:
            return
        try:
            not_seen = rows - {_key(cookie) for cookie in live_udp()}
        except OSError:
            return
        self._map.delete_many(list(not_seen & self._not_seen))
        self._not_seen = not_seen - self._not_seen


def _key(cookie: int) -> bytes:
    return cookie.to_bytes(8, sys.byteorder)
