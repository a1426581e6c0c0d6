"""UDP clients whose backends stopped serving.

They have no connection that would break, so they would go on sending to an endpoint that does not
answer. Flows that lead to the wrong endpoint are removed, the node's sockets that are connected to
it are connected anew, and other sockets learn at their next datagram that it no longer serves.
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


class _State(NamedTuple):
    """The UDP frontends of a Service, and the endpoints that serve them."""

    endpoints: frozenset[UdpEndpoint]
    frontends: Mapping[ServicePort, frozenset[Place]]

    @property
    def places(self) -> frozenset[Place]:
        """All frontends."""
        return frozenset(place for each in self.frontends.values() for place in each)


_NOTHING = _State(frozenset(), {})


class _Change(NamedTuple):
    """One Service before and now; ``ports`` lost endpoints or have one for the first time."""

    before: _State
    now: _State
    ports: frozenset[ServicePort]


_SAME = _Change(_NOTHING, _NOTHING, frozenset())


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
        self._states: dict[ServiceKey, _State] = {}
        self._entries = UdpEndpointsMap(pinned)
        self._sockets = UdpSocketsMap(pinned)
        self._node_addresses = pinned.map("node_addresses")
        self._restored: frozenset[UdpEndpoint] = frozenset()
        self._not_seen: set[ServiceKey] = set()
        self._must_settle = True

    def restore(self) -> None:
        """Take over what an earlier agent left in the kernel; :meth:`follow` is next."""
        self._restored = frozenset(self._entries.serving())
        self._not_seen = set(self._planner.applied_state.keys())

    def follow(self, summaries: Summaries) -> None:
        """Update some Services, and the Services that took frontends over from them.

        A Service that found no room is updated when it has found room.
        """
        some_unseen = bool(self._not_seen)
        changes = self._update(summaries)
        self._write(changes.values())
        moved = frozenset(
            place for one in changes.values() for place in one.before.places - one.now.places
        )
        serving: dict[Place, frozenset[Place]] = {}
        families: set[int] = set()
        for key, change in changes.items():
            for port, places in change.now.frontends.items():
                endpoints = self._serving.of(key).get(port)
                to_check = places - change.before.frontends.get(port, places) | places & moved
                if port in change.ports:
                    to_check = places
                if endpoints and to_check:
                    serving |= dict.fromkeys(to_check, endpoints)
                    families.add(port.family)
        if serving:
            self._release_clients(serving, families)
        if self._must_settle or (some_unseen and not self._not_seen):
            self.repair()

    def repair(self) -> int:
        """Make the kernel hold no other endpoints as serving; return how many entries differed.

        Endpoints of Services that an earlier agent left, and that are not seen yet, stay.
        """
        applied = self._planner.applied_state
        spared = {one.service_id for key in self._not_seen for one in applied.of(key).values()}
        try:
            endpoints = {one for each in self._states.values() for one in each.endpoints}
            drift = self._entries.settle(endpoints, spared=spared)
            self._reports.note("udp", None)
        except MapFull as error:
            self._reports.note("udp", str(error))
            return 0
        if not self._not_seen:
            self._restored = frozenset()
        self._must_settle = False
        return drift

    def tidy(self) -> None:
        """Forget closed sockets, to make room for others."""
        if self._with_sockets:
            self._sockets.forget_closed()

    # -- finding changes --

    def _update(self, summaries: Summaries) -> dict[ServiceKey, _Change]:
        changes: dict[ServiceKey, _Change] = {}
        queue = [key for key in summaries if key not in self._planner.refused]
        while queue:
            key = queue.pop()
            if key in changes:
                continue
            summary = summaries.get(key) or self._planner.summary(key)
            change = self._update_service(key, summary)
            if change is _SAME:
                continue
            changes[key] = change
            lost = change.before.places - change.now.places
            queue += [owner for place in lost if (owner := self._owner(place))]
        return changes

    def _update_service(self, key: ServiceKey, summary: EndpointSummary) -> _Change:
        self._not_seen.discard(key)
        before = self._states.pop(key, _NOTHING)
        changes = self._serving.update(key, summary.udp_serving)
        if before is _NOTHING and not summary.udp_serving:
            return _SAME  # it has no UDP, as nearly all
        now = self._find_state(key, before)
        if now.frontends:
            self._states[key] = now
        return _Change(before, now, frozenset(change.port for change in changes))

    def _find_state(self, key: ServiceKey, before: _State) -> _State:
        """Return frontends, and endpoints: those eligible, and those that were and still serve."""
        endpoints: set[UdpEndpoint] = set()
        frontends = {}
        for port, one in self._planner.applied_state.of(key).items():
            if port.protocol != IPPROTO_UDP:
                continue
            frontends[port] = frozenset(
                (each.address, each.port)
                for each in one.frontends()
                if each.protocol == IPPROTO_UDP
            )
            endpoints.update((one.service_id, each.place) for each in one.backends())
            for place in self._serving.of(key).get(port, ()):
                endpoint = (one.service_id, place)
                if endpoint in before.endpoints or endpoint in self._restored:
                    endpoints.add(endpoint)
        return _State(frozenset(endpoints), frontends)

    def _owner(self, place: Place) -> ServiceKey | None:
        owner = self._planner.ownership.owner(Frontend(*place, IPPROTO_UDP))
        return None if owner in self._planner.refused else owner

    # -- acting on them --

    def _write(self, changes: Collection[_Change]) -> None:
        """Write for the socket programs which endpoints serve, and delete those that do not."""
        came = {one for each in changes for one in each.now.endpoints - each.before.endpoints}
        left = {one for each in changes for one in each.before.endpoints - each.now.endpoints}
        try:
            self._entries.change(came, left)
        except MapFull:
            # Deleted entries keep their room for a while, which settling gives back.
            self.repair()

    def _release_clients(
        self, serving: Mapping[Place, frozenset[Place]], families: Iterable[int]
    ) -> None:
        """Remove flows and move sockets whose endpoint does not serve their frontend."""
        stale = StaleUdp(serving, self._has_owner, self._has_nodeports)
        began = time.monotonic()
        removed = self._flows.remove_stale(stale)
        self._metrics.stale_udp_removed(
            time.monotonic() - began, {each: removed.get(each, 0) for each in families}
        )
        if self._with_sockets:
            self._sockets.move(stale.is_stale)

    def _has_owner(self, frontend: Frontend) -> bool:
        return self._planner.ownership.owner(frontend) is not None

    def _has_nodeports(self, address: bytes) -> bool:
        """True if the programs use an address as one of the node where NodePorts answer."""
        if family(address) == 4 and address[12] == _LOOPBACK[12]:
            address = _LOOPBACK
        entry = self._node_addresses.lookup(address)
        return entry is not None and entry[0] != 0
