"""Who serves UDP service ports, eligible or not, for sockets that send to them.

A socket that is not connected keeps the backend it was given by the socket hooks as long as that
one stands here (``bpf/translations.h``).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Iterator, Set
from socket import IPPROTO_UDP, htons, ntohs

from bpfsvc.datapath.pins import Pinned
from bpfsvc.rows import Place

Server = tuple[int, Place]
"""A service id, and somebody who serves it."""

_KEY = ("service", "by.address", "by.port", "by.protocol", "by.zero")

_SERVES, _LEFT = struct.pack("=I", 1), struct.pack("=I", 0)

_FRESH_SECONDS = 2.0
"""CHOICE_FRESH_NS of the C sources: so long who left must be told from who has only come."""


class UdpServing:
    """The map ``udp_serving``."""

    def __init__(self, pinned: Pinned) -> None:
        """Open the map; raise :class:`KernelError` if its layout is not the one known here."""
        self._map = pinned.map("udp_serving")
        self._left_at = 0.0
        self._key = pinned.layout.maps["udp_serving"].key.expect(
            "the keys of map udp_serving", _KEY
        )

    def change(self, came: Iterable[Server], left: Iterable[Server]) -> None:
        """Note who serves and who does not any more; :class:`MapFull` where there is no room."""
        self._leave(map(self._packed, left))
        self._map.update_many((self._packed(one), _SERVES) for one in came)

    def serving(self) -> Iterator[Server]:
        """Read who serves."""
        for key, value in self._map.items():
            if value == _SERVES:
                service, address, port, *_ = self._key.unpack(key)
                yield service, (address, ntohs(port))

    def settle(self, servers: Set[Server], spared: Collection[int] = ()) -> int:
        """Let exactly these serve; return how many rows said something else.

        Rows of service ids that are ``spared`` stay as they are. Raises :class:`MapFull`.
        """
        wanted = {self._packed(one) for one in servers}
        held = {
            key: value for key, value in self._map.items() if self._key.unpack(key)[0] not in spared
        }
        serving = {key for key, value in held.items() if value == _SERVES}
        if time.monotonic() - self._left_at > _FRESH_SECONDS:
            self._map.delete_many(list(held.keys() - serving - wanted))
        self._leave(serving - wanted)
        self._map.update_many((key, _SERVES) for key in wanted - serving)
        return len(wanted ^ serving)

    def _leave(self, keys: Iterable[bytes]) -> None:
        rows = [(key, _LEFT) for key in keys]
        if rows:
            self._map.update_many(rows)
            self._left_at = time.monotonic()

    def _packed(self, server: Server) -> bytes:
        service, (address, port) = server
        return self._key.pack(service, address, htons(port), IPPROTO_UDP, 0)
