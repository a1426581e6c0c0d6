"""TCP sockets of the node that the hooks have connected to a backend (``bpf/path/socket_lb.h``).

What a socket asked for and what it got is in its storage. The kernel lists sockets together with
that, so a socket that connected to the same place by itself is not taken for one of a Service.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from socket import ntohs

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.sock_diag import TcpSocket, destroy_tcp, tcp_sockets
from bpfsvc.services.departures import Departed

_FIELDS = ("direct", "backend.service", "backend.by.address", "backend.by.port")

_log = logging.getLogger("bpfsvc")


class TcpSockets:
    """The sockets of this network namespace. Where they cannot be listed, that is logged."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the map; raise :class:`KernelError` if its layout is not the one known here."""
        self._storage = pinned.map("socket_translations")
        # The first row of the storage has the layout of these values. TCP uses no other.
        self._row = pinned.layout.maps["socket_overflow"].value.pick(*_FIELDS)

    def backends(self, services: Collection[int]) -> set[Departed]:
        """Return the service id and the backend of all connections of some service ids."""
        return {departed for _, departed in self._all() if departed[0] in services}

    def close(self, departed: Collection[Departed]) -> int:
        """Close the sockets that are connected to some backends of Services; return how many."""
        try:
            return destroy_tcp([each for each, to in self._all() if to in departed])
        except OSError as error:
            _log.warning("TCP sockets cannot be closed: %s", os.strerror(error.errno or 0))
            return 0

    def _all(self) -> Iterator[tuple[TcpSocket, Departed]]:
        try:
            found = tcp_sockets(self._storage.fd)
        except OSError as error:
            _log.warning("TCP sockets cannot be listed: %s", os.strerror(error.errno or 0))
            return
        for each in found:
            direct, service, address, port = self._row.unpack_from(each.value)
            place = address, ntohs(port)
            if service and not direct and each.peer == place:
                yield each, (service, place)
