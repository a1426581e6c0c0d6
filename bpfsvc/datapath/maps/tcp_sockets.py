"""TCP sockets of the node that the hooks have connected to a backend (``bpf/path/socket/lb.h``).

A socket's frontend and backend are in its storage. The kernel lists sockets together with
that, so a socket that connected to the same place by itself is not taken for one of a Service.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from socket import ntohs
from typing import NamedTuple

from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.sock_diag import TcpSocket, destroy_tcp, tcp_sockets
from bpfsvc.services.entries import Place
from bpfsvc.services.scheduling.departures import Departed

_FIELDS = ("direct", "backend.service", "backend.by.address", "backend.by.port", "chosen")

_log = logging.getLogger("bpfsvc")


class NodeSocket(NamedTuple):
    """A socket: its service id and backend; ``half_open``: it is still connecting."""

    service: int
    backend: Place
    half_open: bool = False


class TcpSockets:
    """The sockets of this network namespace."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the map; raise :class:`KernelError` if its layout is not the one known here."""
        self._storage = pinned.map("socket_translations")
        # The first row of the storage has the layout of these values. TCP uses no other.
        self._row = pinned.layout.maps["socket_overflow"].value.pick(*_FIELDS)

    def connected(self) -> list[NodeSocket]:
        """Return each socket; raise OSError without a list."""
        return [NodeSocket(*departed, opened.half_open) for opened, departed, _ in self._list()]

    def backends(self, services: Collection[int]) -> set[Departed]:
        """Return the service id and the backend of all connections of some service ids.

        Where sockets cannot be listed, that is logged.
        """
        return {departed for _, departed, _ in self._all() if departed[0] in services}

    def close(self, is_over: Callable[[Departed, float], bool]) -> int:
        """Close some sockets; return how many.

        ``is_over``: True for the service id and the backend of such a socket, and when it was
        connected, of time.monotonic().
        """
        try:
            over = [opened for opened, to, chosen in self._all() if is_over(to, chosen)]
            return destroy_tcp(over)
        except OSError as error:
            _log.warning("TCP sockets cannot be closed: %s", os.strerror(error.errno or 0))
            return 0

    def _all(self) -> Iterator[tuple[TcpSocket, Departed, float]]:
        try:
            yield from self._list()
        except OSError as error:
            _log.warning("TCP sockets cannot be listed: %s", os.strerror(error.errno or 0))

    def _list(self) -> Iterator[tuple[TcpSocket, Departed, float]]:
        for opened in tcp_sockets(self._storage.fd):
            direct, service, address, port, chosen = self._row.unpack_from(opened.value)
            backend = address, ntohs(port)
            if service and not direct and opened.peer == backend:
                yield opened, (service, backend), chosen / NS_PER_SECOND
