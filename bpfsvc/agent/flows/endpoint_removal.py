"""TCP connections to endpoints that left a Service: reset at once, or when they have drained.

Only for Services that ask for it (:mod:`bpfsvc.services.scheduling.removal`). The entries of a
connection are removed, and both sides get a reset with the number that they acknowledged last. A
side that has received more since ignores the reset, and is about to acknowledge: its next packet is
answered by a reset (``bpf/path/first/unknown.h``, or by the client's or the node's own TCP).
Sockets of the node have no entries, and are closed. Sockets of pods are not translated where a
Service asks for this.

The table of connections may have a million entries, so a thread of its own reads it, once for all
endpoints that are due, and with pauses: no change of another Service waits.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from socket import IPPROTO_TCP
from typing import NamedTuple

from bpfsvc.agent.follower import Follower, Summaries
from bpfsvc.base.address import endpoint_text
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.tcp_connections import TcpConnection, TcpConnections
from bpfsvc.datapath.maps.tcp_sockets import TcpSockets
from bpfsvc.datapath.resets import send
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.planner import Planner
from bpfsvc.services.scheduling.departures import Departed, Departures, Due
from bpfsvc.services.scheduling.removal import Members

_SHOWN = 3
"""Endpoints that a line of the log names."""

_PAUSE = 0.001
"""Seconds between two blocks of the table."""

_RETRY = 1.0
"""Seconds after a failure."""

_TICK = 0.01
"""Seconds by which the kernel's coarse clock may be late."""

_log = logging.getLogger("bpfsvc")


class _EndpointsChange(NamedTuple):
    """The endpoints of a Service at a moment; ``members``: None if connections are kept."""

    key: ServiceKey
    members: Members | None
    ids: Mapping[ServicePort, int]
    at: float


class EndpointRemoval(Follower):
    """Notes which endpoints left, and ends connections to them in a thread of its own."""

    def __init__(
        self,
        planner: Planner,
        pinned: Pinned,
        metrics: Observer,
        *,
        with_sockets: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``with_sockets``: this node's sockets use the socket LB."""
        self._planner = planner
        self._metrics = metrics
        self._clock = clock
        self._followed: set[ServiceKey] = set()
        """Services that do not keep connections; this set belongs to the agent's thread."""
        self._changes: queue.SimpleQueue[list[_EndpointsChange] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="endpoint removal", daemon=True)
        # The attributes below belong to that thread.
        self._departures = Departures()
        self._seen: dict[int, float] = {}
        """Service ids -> when the Service was first seen. Its connections are still to be searched
        for endpoints that had left; a later connection may be to an endpoint that came since."""
        self._connections = TcpConnections(pinned, lambda: self._stop.wait(_PAUSE))
        self._sockets = TcpSockets(pinned) if with_sockets else None

    def follow(self, summaries: Summaries) -> None:
        """Note the endpoints of some Services.

        A Service that found no room still has the endpoints of before: they are noted later.
        """
        changes = []
        for key, summary in summaries.items():
            if key in self._planner.refused:
                continue
            if summary.members is None and key not in self._followed:
                continue  # as nearly all
            ids = {
                port: applied.service_id
                for port, applied in self._planner.applied_state.of(key).items()
                if port.protocol == IPPROTO_TCP
            }
            changes.append(_EndpointsChange(key, summary.members, ids, self._clock()))
            if summary.members is None:
                self._followed.discard(key)
            else:
                self._followed.add(key)
        if changes:
            self._changes.put(changes)
            if self._thread.ident is None:
                self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        self._changes.put(None)
        if self._thread.ident is not None:
            self._thread.join()

    # -- the thread --

    def _run(self) -> None:
        while not self._stop.is_set():
            # All changes first: the last one may bring an endpoint back that is due.
            for change in self._next_changes():
                seen = self._departures.update(*change)
                self._seen |= dict.fromkeys(seen, change.at - _TICK)
            try:
                self._end_due()
            except (BpfsvcError, OSError) as error:
                _log.warning("connections to endpoints that left cannot be ended yet: %s", error)
                self._stop.wait(_RETRY)

    def _next_changes(self) -> Iterator[_EndpointsChange]:
        """Wait for changes until connections are due; yield the changes that are there."""
        seconds = self._until_due()
        with suppress(queue.Empty):
            while True:
                yield from self._changes.get(timeout=seconds) or ()
                seconds = 0

    def _until_due(self) -> float | None:
        """Return the seconds until connections are due; None: not before the next change."""
        at = self._departures.next_at
        if self._seen:
            return 0
        return None if at is None else max(at - self._clock(), 0)

    def _end_due(self) -> None:
        """End the connections that are due."""
        now = self._clock()
        due = self._departures.due(now)
        candidates: list[tuple[Departed, TcpConnection]] = []
        if self._seen or due.first:
            candidates = self._find(due.first)
        if self._seen:
            for departed in self._unknown(candidates):
                self._departures.add([departed], now, until=self._seen[departed[0]])
            due = self._departures.due(now)
            self._seen = {}
        if due.first or due.again:
            over = [
                connection
                for departed, connection in candidates
                if _is_over(due.first, departed, connection.created)
            ]
            self._end(due, over)
            self._departures.done(due, self._clock())

    def _find(self, due: Collection[Departed]) -> list[tuple[Departed, TcpConnection]]:
        """Return connections to endpoints that are due, or unknown to Services seen first."""
        members = self._departures.members(self._seen.keys())
        services = self._seen.keys() | {service for service, _ in due}
        return self._connections.to(
            services, lambda departed: departed in due or _is_unknown(members, departed)
        )

    def _unknown(self, candidates: Collection[tuple[Departed, TcpConnection]]) -> set[Departed]:
        """Return the endpoints of connections that Services seen for the first time do not have."""
        members = self._departures.members(self._seen.keys())
        connected = {departed for departed, _ in candidates}
        if self._sockets:
            connected |= self._sockets.backends(self._seen.keys())
        return {departed for departed in connected if _is_unknown(members, departed)}

    def _end(self, due: Due, over: Collection[TcpConnection]) -> None:
        resets = self._connections.remove(over)
        try:
            sent, why = send(resets), ""
        except PermissionError:
            sent, why = 0, " (the agent needs CAP_NET_RAW to send them)"
        left = {**due.again, **due.first}
        closed = 0
        if self._sockets:
            closed = self._sockets.close(lambda to, chosen: _is_over(left, to, chosen))
        self._metrics.removal_resets(len(over), closed)
        if over or closed:
            endpoints = sorted({endpoint_text(*address) for _, address in left})
            _log.info(
                "%s left, %s: ended %s (%d of %d resets sent%s) and %s of the node",
                count_text(len(endpoints), "endpoint"),
                list_text(endpoints, _SHOWN),
                count_text(len(over), "connection"),
                sent,
                len(resets),
                why,
                count_text(closed, "socket"),
            )


def _is_unknown(members: Mapping[int, frozenset[Place]], departed: Departed) -> bool:
    """True if the Service is among ``members``, and does not have this endpoint."""
    service, address = departed
    return service in members and address not in members[service]


def _is_over(left: Mapping[Departed, float], departed: Departed, created: float) -> bool:
    """True if a connection began before its endpoint left; the endpoint may be back by now."""
    return departed in left and created <= left[departed]
