"""The endpoints that serve UDP service ports, eligible or not, for sockets that send to them.

A socket that is not connected keeps the backend that the socket hooks chose for it as long as that
backend has an entry here (``bpf/maps/socket_storage.h``).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Iterator, Set
from socket import IPPROTO_UDP, htons, ntohs

from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.services.entries import Place

UdpEndpoint = tuple[int, Place]
"""A service id, and an endpoint that serves it."""

_KEY = ("service", "by.address", "by.port", "by.protocol", "by.zero")


class UdpEndpointsMap:
    """The map ``udp_serving``."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the map; raise :class:`KernelError` if its layout is not the one known here."""
        self._map = pinned.map("udp_serving")
        self._left_at: dict[bytes, float] = {}
        """Endpoints that left, with the time, as long as they have an entry."""
        constant = pinned.layout.constant
        self._serves = struct.pack("=I", constant("UDP_SERVES"))
        self._left = struct.pack("=I", constant("UDP_LEFT"))
        # For so long an endpoint without an entry may be new, so entries of former endpoints stay.
        self._fresh_seconds = constant("CHOICE_FRESH_SECONDS")
        self._key = pinned.layout.maps["udp_serving"].key.expect(
            "the keys of map udp_serving", _KEY
        )

    def change(self, came: Iterable[UdpEndpoint], left: Iterable[UdpEndpoint]) -> None:
        """Write endpoints that serve from now on, and former ones; may raise ``MapFull``."""
        self._leave(map(self._packed, left))
        self._serve(map(self._packed, came))

    def forget_left(self) -> None:
        """Delete the entries of endpoints that left so long ago that no choice of them is fresh."""
        ended = time.monotonic() - self._fresh_seconds
        forgotten = [key for key, left_at in self._left_at.items() if left_at < ended]
        self._map.delete_many(forgotten)
        for key in forgotten:
            del self._left_at[key]

    def serving(self) -> Iterator[UdpEndpoint]:
        """Yield the endpoints that serve."""
        for key, value in self._map.items():
            if value == self._serves:
                service, address, port, *_ = self._key.unpack(key)
                yield service, (address, ntohs(port))

    def settle(self, servers: Set[UdpEndpoint], spared: Collection[int] = ()) -> int:
        """Make the endpoints that serve exactly these; return how many entries differed.

        Entries of the service ids in ``spared`` stay as they are. Raises :class:`MapFull`.
        """
        wanted = {self._packed(endpoint) for endpoint in servers}
        held = {
            key: value for key, value in self._map.items() if self._key.unpack(key)[0] not in spared
        }
        serving = {key for key, value in held.items() if value == self._serves}
        self._map.delete_many(list(held.keys() - serving - wanted - self._left_at.keys()))
        self.forget_left()
        self._leave(serving - wanted)
        self._serve(wanted - serving)
        return len(wanted ^ serving)

    def _leave(self, keys: Iterable[bytes]) -> None:
        keys = list(keys)
        self._map.update_many((key, self._left) for key in keys)
        self._left_at |= dict.fromkeys(keys, time.monotonic())

    def _serve(self, keys: Iterable[bytes]) -> None:
        keys = list(keys)
        for key in keys:
            self._left_at.pop(key, None)
        self._map.update_many((key, self._serves) for key in keys)

    def _packed(self, server: UdpEndpoint) -> bytes:
        service, (address, port) = server
        return self._key.pack(service, address, htons(port), IPPROTO_UDP, 0)
