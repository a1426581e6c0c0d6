"""UDP clients, and what becomes of them when their backends cease to serve.

They have no connection that would break, so they would go on sending to nobody. Flows that lead to
the wrong place are removed, the node's sockets that are connected to it closed, and those that are
not learn at their next datagram that it does not serve any more.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from socket import IPPROTO_UDP
from typing import NamedTuple

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
from bpfsvc.rows import Frontend, Place, ServicePort
from bpfsvc.served import Served
from bpfsvc.serving import Serving

_LOOPBACK = pack("127.0.0.1")


class _Held(NamedTuple):
    """What was found of a Service when it was last looked at."""

    servers: frozenset[Server]
    frontends: Mapping[ServicePort, frozenset[Place]]

    @property
    def places(self) -> frozenset[Place]:
        """All frontends."""
        return frozenset(place for each in self.frontends.values() for place in each)


_NOTHING = _Held(frozenset(), {})


class _Look(NamedTuple):
    """A look at one Service, and the ports that lost somebody or have somebody first."""

    before: _Held
    now: _Held
    changed: frozenset[ServicePort]


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
        self._held: dict[ServiceKey, _Held] = {}
        self._rows = UdpServing(pinned)
        self._sockets = UdpSockets(pinned)
        self._addresses = pinned.map("node_addresses")
        self._former: frozenset[Server] = frozenset()
        self._not_seen: set[ServiceKey] = set()
        self.is_new = True
        """Whether nothing has been settled so far."""

    def adopt(self) -> None:
        """Take over what an earlier agent has left; :meth:`follow` is next."""
        self._former = frozenset(self._rows.serving())
        self._not_seen = set(self._books.ledger.keys())

    def follow(self, touched: Iterable[ServiceKey]) -> None:
        """See who serves some Services by now, and whoever took frontends over from them.

        Their rows are in the kernel. A Service that found no room is looked at when it has.
        """
        looked: dict[ServiceKey, _Look] = {}
        moved: set[Place] = set()
        queue = [key for key in touched if key not in self._books.refused]
        while queue:
            key = queue.pop()
            if key in looked:
                continue
            looked[key] = look = self._look(key)
            lost = look.before.places - look.now.places
            moved |= lost
            queue += [heir for place in lost if (heir := self._owner(place))]
        self._note(looked.values())
        asked: dict[Place, frozenset[Place]] = {}
        families: set[int] = set()
        for key, look in looked.items():
            for port, places in look.now.frontends.items():
                serving = self._serving.of(key).get(port)
                fresh = places - look.before.frontends.get(port, places) | places & moved
                if port in look.changed:
                    fresh = places
                if serving and fresh:
                    asked |= dict.fromkeys(fresh, serving)
                    families.add(port.family)
        if asked:
            self._lead_away(asked, families)

    def settle(self) -> int:
        """Let nobody else stand there as serving; return how many rows differed.

        But those of Services that an earlier agent has left and that are not seen yet.
        """
        unknown = {
            one.service_id for key in self._not_seen for one in self._books.ledger.of(key).values()
        }
        try:
            servers = {one for each in self._held.values() for one in each.servers}
            drift = self._rows.settle(servers, spared=unknown)
            self._health.note("udp", None)
        except MapFull as error:
            self._health.note("udp", str(error))
            return 0
        if not self._not_seen:
            self._former = frozenset()
        self.is_new = False
        return drift

    def _note(self, looks: Collection[_Look]) -> None:
        """Tell the sockets' programs who came and who left."""
        came = {one for look in looks for one in look.now.servers - look.before.servers}
        left = {one for look in looks for one in look.before.servers - look.now.servers}
        try:
            self._rows.change(came, left)
        except MapFull:
            # Who left takes room for a while, which settling gives back.
            self.settle()

    def _look(self, key: ServiceKey) -> _Look:
        self._not_seen.discard(key)
        before = self._held.pop(key, _NOTHING)
        changes = self._serving.changes(key, *self._books.cluster.lookup(key))
        now = self._find(key, before)
        if now.frontends:
            self._held[key] = now
        return _Look(before, now, frozenset(change.port for change in changes))

    def _find(self, key: ServiceKey, before: _Held) -> _Held:
        """Give frontends and servers: who is eligible, and who was and still serves."""
        servers: set[Server] = set()
        frontends = {}
        for port, one in self._books.ledger.of(key).items():
            if port.protocol != IPPROTO_UDP:
                continue
            frontends[port] = frozenset(
                (each.address, each.port)
                for each in one.frontends()
                if each.protocol == IPPROTO_UDP
            )
            servers.update((one.service_id, each.place) for each in one.backends())
            for place in self._serving.of(key).get(port, ()):
                server = (one.service_id, place)
                if server in before.servers or server in self._former:
                    servers.add(server)
        return _Held(frozenset(servers), frontends)

    def _owner(self, place: Place) -> ServiceKey | None:
        owner = self._books.claims.owner(Frontend(*place, IPPROTO_UDP))
        return None if owner in self._books.refused else owner

    def forget_closed(self) -> None:
        """Make room for sockets to come; to be called now and then."""
        if self._with_sockets:
            self._sockets.forget_closed()

    def _lead_away(self, asked: Mapping[Place, frozenset[Place]], families: Iterable[int]) -> None:
        """Let those go who were led to somebody who does not serve what they asked for."""
        served = Served(asked, self._is_taken, self._takes_nodeports)
        began = time.monotonic()
        removed = self._collector.forget_udp(served)
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
