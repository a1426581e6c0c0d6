"""UDP clients, and what becomes of them when their backends cease to serve.

They have no connection that would break, so they would go on sending to nobody. Flows that lead to
the wrong place are removed, the node's sockets that are connected to it closed, and those that are
not learn at their next datagram that it does not serve any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from socket import IPPROTO_UDP

from bpfsvc.address import family, pack
from bpfsvc.books import Books
from bpfsvc.cluster import ServiceKey
from bpfsvc.collector import Collector
from bpfsvc.datapath.pins import Pinned
from bpfsvc.datapath.udpserving import Server, UdpServing
from bpfsvc.datapath.udpsockets import UdpSockets
from bpfsvc.errors import MapFull
from bpfsvc.health import Health
from bpfsvc.metrics.observer import Observer
from bpfsvc.rows import Frontend
from bpfsvc.served import Served
from bpfsvc.serving import Change, Serving

_LOOPBACK = pack("127.0.0.1")


class UdpClients:
    """Follows who serves; all of it belongs to one thread."""

    def __init__(
        self,
        books: Books,
        pinned: Pinned,
        collector: Collector,
        health: Health,
        metrics: Observer,
        *,
        with_sockets: bool,
    ) -> None:
        """``with_sockets``: sockets of this node are translated, and so may have to be closed."""
        self._books = books
        self._collector = collector
        self._health = health
        self._metrics = metrics
        self._with_sockets = with_sockets
        self._serving = Serving()
        self._servers: dict[ServiceKey, frozenset[Server]] = {}
        self._rows = UdpServing(pinned)
        self._sockets = UdpSockets(pinned)
        self._addresses = pinned.map("node_addresses")

    def follow(self, touched: Iterable[ServiceKey]) -> None:
        """See who serves some Services by now; their rows are in the kernel."""
        changes = []
        came: set[Server] = set()
        left: set[Server] = set()
        for key in touched:
            changes += self._serving.changes(key, *self._books.cluster.lookup(key))
            before, now = self._servers.pop(key, frozenset()), self._servers_of(key)
            if now:
                self._servers[key] = now
            came |= now - before
            left |= before - now
        try:
            self._rows.change(came, left)
        except MapFull as error:
            self._health.ill("udp", str(error))
        self._lead_away(changes)

    def settle(self) -> int:
        """Let nobody else stand there as serving; return how many rows differed."""
        try:
            drift = self._rows.settle({one for each in self._servers.values() for one in each})
        except MapFull as error:
            self._health.ill("udp", str(error))
            return 0
        self._health.well("udp")
        return drift

    def forget_closed(self) -> None:
        """Make room for sockets to come; to be called now and then."""
        if self._with_sockets:
            self._sockets.forget_closed()

    def _servers_of(self, key: ServiceKey) -> frozenset[Server]:
        held = self._books.ledger.of(key)
        return frozenset(
            (held[port].service_id, place)
            for port, places in self._serving.of(key).items()
            if port in held
            for place in places
        )

    def _lead_away(self, changes: list[Change]) -> None:
        """Let those go who were led to somebody who does not serve where they sent to."""
        serving = {
            (frontend.address, frontend.port): change.serving
            for change in changes
            if (one := self._books.ledger.of(change.port[:2]).get(change.port))
            for frontend in one.frontends()
            if frontend.protocol == IPPROTO_UDP
        }
        if not serving:
            return
        served = Served(serving, self._is_taken, self._takes_nodeports)
        began = time.monotonic()
        removed = self._collector.forget_udp(served)
        families = {change.port.family for change in changes}
        self._metrics.stale_udp(
            time.monotonic() - began, {each: removed.get(each, 0) for each in families}
        )
        if self._with_sockets:
            self._sockets.close(served.is_astray)

    def _is_taken(self, frontend: Frontend) -> bool:
        return self._books.claims.owner(frontend) is not None

    def _takes_nodeports(self, address: bytes) -> bool:
        """Whether the programs take an address for one of the node where NodePorts answer."""
        if family(address) == 4 and address[12] == _LOOPBACK[12]:
            address = _LOOPBACK
        row = self._addresses.lookup(address)
        return row is not None and row[0] != 0
