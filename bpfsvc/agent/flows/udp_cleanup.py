"""UDP clients of endpoints that stopped serving.

Such a client has no connection that would break, and would go on sending to an endpoint that does
not answer. So flows to such an endpoint are removed, the node's sockets that are connected to it
are connected anew, and an unconnected socket learns at its next datagram that it no longer serves.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from socket import IPPROTO_UDP
from typing import NamedTuple

from bpfsvc.agent.flows.udp_flows import UdpFlows
from bpfsvc.agent.follower import Follower, Summaries
from bpfsvc.agent.reports import Reports
from bpfsvc.base.address import family, pack
from bpfsvc.base.errors import MapFull
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.udp_endpoints import UdpEndpoint, UdpEndpointsMap
from bpfsvc.datapath.maps.udp_sockets import UdpSocketsMap
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Frontend, Place, ServicePort
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.stale_udp import StaleUdp
from bpfsvc.services.rules.udp_endpoints import UdpEndpoints
from bpfsvc.services.rules.view import EndpointSummary

_LOOPBACK = pack("127.0.0.1")


class _UdpService(NamedTuple):
    """The endpoints of a Service that serve UDP, and its UDP frontends."""

    endpoints: frozenset[UdpEndpoint]
    frontends: Mapping[ServicePort, frozenset[Place]]

    @property
    def all_frontends(self) -> frozenset[Place]:
        return frozenset[Place]().union(*self.frontends.values())


_NO_UDP = _UdpService(frozenset(), {})


class _ServiceChange(NamedTuple):
    """A Service before and now; ``ports`` lost endpoints or have one for the first time."""

    before: _UdpService
    now: _UdpService
    ports: frozenset[ServicePort]


class UdpCleanup(Follower):
    """Follows which endpoints serve UDP; belongs to the agent's thread."""

    def __init__(
        self,
        planner: Planner,
        pinned: Pinned,
        metrics: Observer,
        reports: Reports,
        *,
        with_sockets: bool,
    ) -> None:
        """``with_sockets``: this node's sockets use the socket LB, and may have to be moved."""
        self._planner = planner
        self._metrics = metrics
        self._reports = reports
        self._flows = UdpFlows(pinned)
        self._with_sockets = with_sockets
        self._serving = UdpEndpoints()
        self._known: dict[ServiceKey, _UdpService] = {}
        self._entries = UdpEndpointsMap(pinned)
        self._sockets = UdpSocketsMap(pinned)
        self._node_addresses = pinned.map("node_addresses")
        self._restored: frozenset[UdpEndpoint] = frozenset()
        self._unseen: set[ServiceKey] = set()
        """Services that an earlier agent left and that were not planned since."""
        self._must_repair = True

    def restore(self) -> None:
        """Take over the endpoints and Services that an earlier agent left in the kernel."""
        self._restored = frozenset(self._entries.serving())
        self._unseen = set(self._planner.applied_state.keys())
        if self._with_sockets:
            # The first of two looks: else agents that do not live long would forget no socket.
            self._sockets.forget_closed()

    def follow(self, summaries: Summaries) -> None:
        """Update some Services, and the Services that took frontends over from them.

        A Service that found no room is updated when it has found room.
        """
        some_unseen = bool(self._unseen)
        changes = self._update_all(summaries)
        self._write_endpoints(changes.values())
        moved = frozenset[Place]().union(
            *(change.before.all_frontends - change.now.all_frontends for change in changes.values())
        )
        serving: dict[Place, frozenset[Place]] = {}
        families: set[int] = set()
        for key, change in changes.items():
            for port, frontends in change.now.frontends.items():
                endpoints = self._serving.of(key).get(port)
                to_check = frontends
                if port not in change.ports:
                    new = frontends - change.before.frontends.get(port, frontends)
                    to_check = new | frontends & moved
                if endpoints and to_check:
                    serving |= dict.fromkeys(to_check, endpoints)
                    families.add(port.family)
        if serving:
            self._release_clients(serving, families)
        if self._must_repair or (some_unseen and not self._unseen):
            self.repair()

    def repair(self) -> int:
        """Make the kernel hold no other endpoints as serving; return how many entries differed.

        Endpoints of Services that an earlier agent left, and that are not seen yet, stay.
        """
        applied = self._planner.applied_state
        spared = {port.service_id for key in self._unseen for port in applied.of(key).values()}
        endpoints = {endpoint for known in self._known.values() for endpoint in known.endpoints}
        try:
            drift = self._entries.settle(endpoints, spared=spared)
        except MapFull as error:
            self._reports.note("udp", str(error))
            return 0
        self._reports.note("udp", None)
        if not self._unseen:
            self._restored = frozenset()
        self._must_repair = False
        return drift

    def tidy(self) -> None:
        """Forget endpoints that left a while ago, and closed sockets, to make room for others."""
        self._entries.forget_left()
        if self._with_sockets:
            self._sockets.forget_closed()

    # -- finding changes --

    def _update_all(self, summaries: Summaries) -> dict[ServiceKey, _ServiceChange]:
        changes: dict[ServiceKey, _ServiceChange] = {}
        queue = [key for key in summaries if key not in self._planner.refused]
        while queue:
            key = queue.pop()
            if key in changes:
                continue
            change = self._update(key, summaries.get(key) or self._planner.summary(key))
            if change is None:
                continue
            changes[key] = change
            lost = change.before.all_frontends - change.now.all_frontends
            queue += [owner for frontend in lost if (owner := self._owner(frontend))]
        return changes

    def _update(self, key: ServiceKey, summary: EndpointSummary) -> _ServiceChange | None:
        """Return what has changed of a Service; None if it has no UDP, as nearly all."""
        self._unseen.discard(key)
        before = self._known.pop(key, _NO_UDP)
        changes = self._serving.update(key, summary.udp_serving)
        if before is _NO_UDP and not summary.udp_serving:
            return None
        now = self._find_udp(key, before)
        if now.frontends:
            self._known[key] = now
        return _ServiceChange(before, now, frozenset(change.port for change in changes))

    def _find_udp(self, key: ServiceKey, before: _UdpService) -> _UdpService:
        """Return frontends, and endpoints: those eligible, and those that were and still serve."""
        endpoints: set[UdpEndpoint] = set()
        frontends = {}
        for port, applied in self._planner.applied_state.of(key).items():
            if port.protocol != IPPROTO_UDP:
                continue
            frontends[port] = frozenset(
                (frontend.address, frontend.port)
                for frontend in applied.frontends()
                if frontend.protocol == IPPROTO_UDP
            )
            endpoints.update((applied.service_id, backend.place) for backend in applied.backends())
            for address in self._serving.of(key).get(port, ()):
                endpoint = (applied.service_id, address)
                if endpoint in before.endpoints or endpoint in self._restored:
                    endpoints.add(endpoint)
        return _UdpService(frozenset(endpoints), frontends)

    def _owner(self, frontend: Place) -> ServiceKey | None:
        owner = self._planner.ownership.owner(Frontend(*frontend, IPPROTO_UDP))
        return None if owner in self._planner.refused else owner

    # -- acting on changes --

    def _write_endpoints(self, changes: Collection[_ServiceChange]) -> None:
        """Write for the socket programs which endpoints serve, and delete the others."""
        none = frozenset[UdpEndpoint]()
        came = none.union(*(change.now.endpoints - change.before.endpoints for change in changes))
        left = none.union(*(change.before.endpoints - change.now.endpoints for change in changes))
        try:
            self._entries.change(came, left)
        except MapFull:
            # Deleted entries keep their room for a while; a repair gives it back.
            self.repair()

    def _release_clients(
        self, serving: Mapping[Place, frozenset[Place]], families: Iterable[int]
    ) -> None:
        """Remove flows to endpoints that do not serve the frontend; move sockets away from them."""
        stale = StaleUdp(serving, self._has_owner, self._has_nodeports)
        began = time.monotonic()
        removed = self._flows.remove_stale(stale)
        counts = {of_family: removed.get(of_family, 0) for of_family in families}
        self._metrics.stale_udp_removed(time.monotonic() - began, counts)
        if self._with_sockets:
            self._sockets.move(stale.is_stale)

    def _has_owner(self, frontend: Frontend) -> bool:
        return self._planner.ownership.owner(frontend) is not None

    def _has_nodeports(self, address: bytes) -> bool:
        """True if NodePorts answer at an address of the node, as the programs see it."""
        if family(address) == 4 and address[12] == _LOOPBACK[12]:
            address = _LOOPBACK
        entry = self._node_addresses.lookup(address)
        return entry is not None and entry[0] != 0
