"""UDP backends that ceased to serve a Service port, for sockets that send to them.

A socket that is not connected keeps the backend it was given by the socket hooks. It looks here
before each datagram, for the backend may still be one of another Service.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from socket import IPPROTO_UDP, htons, ntohs

from bpfsvc.datapath.pins import Pinned
from bpfsvc.rows import Place

_KEY = ("service", "by.address", "by.port", "by.protocol", "by.zero")

_ANYTHING = struct.pack("=I", 1)
"""The value of rows that say everything by being there."""


class Departures:
    """The map ``departures``; the kernel forgets the oldest when it is full."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the map; raise :class:`KernelError` if its layout is not the one known here."""
        self._map = pinned.map("departures")
        self._key = pinned.layout.maps["departures"].key.expect("the keys of map departures", _KEY)

    def note(
        self, gone: Iterable[tuple[Place, int]], serving: Mapping[int, frozenset[Place]]
    ) -> None:
        """Note who ceased to serve which service id, and that others of ``serving`` do again."""
        back = [key for key, _ in self._map.items() if _serves(self._key.unpack(key), serving)]
        self._map.delete_many(back)
        self._map.update_many(
            (self._key.pack(service, address, htons(port), IPPROTO_UDP, 0), _ANYTHING)
            for (address, port), service in gone
        )


def _serves(
    departure: tuple[int, bytes, int, int, int], serving: Mapping[int, frozenset[Place]]
) -> bool:
    service, address, port, *_ = departure
    return (address, ntohs(port)) in serving.get(service, ())
