"""TCP connections to endpoints that left a Service: reset at once, or when they have drained.

Only for Services that ask for it (:mod:`bpfsvc.services.scheduling.removal`). The entries of a
connection are removed, and both of its sides get a reset with the number that they acknowledged
last. One that has received more since ignores it, and is about to acknowledge: its next packet is
answered by a reset (``bpf/path/first/unknown.h``, or by the client's or the node's own TCP).
Sockets of the node, of which there are no entries, are closed. Those of pods are not translated
where a Service asks for this.

The table of connections may have a million entries, so it is read by a thread of its own, once for
all endpoints that are due, and with pauses: a change of other Services is not held up.
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


class _Change(NamedTuple):
    """What endpoints a Service has at a moment; ``members``: None if it keeps connections."""

    key: ServiceKey
    members: Members | None
    ids: Mapping[ServicePort, int]
    at: float


class EndpointRemoval(Follower):
    """Follows which endpoints left, and ends connections in a thread of its own."""

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
        """Services that do not keep connections; belongs to the agent's thread."""
        self._changes: queue.SimpleQueue[list[_Change] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="endpoint removal", daemon=True)
        # What follows belongs to that thread.
        self._departures = Departures()
        self._seen: dict[int, float] = {}
        """Service ids whose connections are not searched yet for endpoints that had left, and when
        each was seen. A later connection may be to an endpoint that has come since."""
        self._connections = TcpConnections(pinned, lambda: self._stop.wait(_PAUSE))
        self._sockets = TcpSockets(pinned) if with_sockets else None

    def follow(self, summaries: Summaries) -> None:
        """Note the endpoints of some Services.

        One that found no room goes on choosing the endpoints that it had; it is noted when it has.
        """
        changes = []
        for key, summary in summaries.items():
            if key in self._planner.refused:
                continue
            if summary.members is None and key not in self._followed:
                continue  # as nearly all
            ids = {
                port: one.service_id
                for port, one in self._planner.applied_state.of(key).items()
                if port.protocol == IPPROTO_TCP
            }
            changes.append(_Change(key, summary.members, ids, self._clock()))
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
            # All of them: an endpoint that is due may be back by the last one.
            for one in self._waiting():
                seen = self._departures.update(*one)
                self._seen |= dict.fromkeys(seen, one.at - _TICK)
            try:
                self.carry_out()
            except (BpfsvcError, OSError) as error:
                _log.warning("connections to endpoints that left cannot be ended yet: %s", error)
                self._stop.wait(_RETRY)

    def _waiting(self) -> Iterator[_Change]:
        """Yield the changes that are there, or until something is due, the first that comes."""
        seconds = self._until_due()
        with suppress(queue.Empty):
            while True:
                yield from self._changes.get(timeout=seconds) or ()
                seconds = 0

    def _until_due(self) -> float | None:
        """Return for how many seconds nothing is due; None: until the next change."""
        at = self._departures.next_at
        if self._seen:
            return 0
        return None if at is None else max(at - self._clock(), 0)

    def carry_out(self) -> None:
        """End the connections whose time is over."""
        now = self._clock()
        due = self._departures.due(now)
        found: list[tuple[Departed, TcpConnection]] = []
        if self._seen or due.first:
            found = self._find(due.first)
        if self._seen:
            for departed in self._unknown(found):
                self._departures.add([departed], now, until=self._seen[departed[0]])
            due = self._departures.due(now)
            self._seen = {}
        if due.first or due.again:
            over = [one for departed, one in found if _is_over(due.first, departed, one.created)]
            self._end(due, over)
            self._departures.done(due, self._clock())

    def _find(self, due: Collection[Departed]) -> list[tuple[Departed, TcpConnection]]:
        """Return connections to endpoints that are due, or unknown to Services seen first."""
        members = self._departures.members(self._seen.keys())
        services = self._seen.keys() | {service for service, _ in due}
        return self._connections.to(
            services, lambda departed: departed in due or _is_unknown(members, departed)
        )

    def _unknown(self, found: Collection[tuple[Departed, TcpConnection]]) -> set[Departed]:
        """Return the endpoints of connections that Services seen for the first time do not have."""
        members = self._departures.members(self._seen.keys())
        all_of = {departed for departed, _ in found}
        if self._sockets:
            all_of |= self._sockets.backends(self._seen.keys())
        return {departed for departed in all_of if _is_unknown(members, departed)}

    def _end(self, due: Due, found: Collection[TcpConnection]) -> None:
        resets = self._connections.remove(found)
        try:
            sent, why = send(resets), ""
        except PermissionError:
            sent, why = 0, " (the agent needs CAP_NET_RAW to send them)"
        left = {**due.again, **due.first}
        closed = 0
        if self._sockets:
            closed = self._sockets.close(lambda to, chosen: _is_over(left, to, chosen))
        self._metrics.removal_resets(len(found), closed)
        if found or closed:
            places = sorted({endpoint_text(*place) for _, place in left})
            _log.info(
                "%s left, %s: ended %s (%d of %d resets sent%s) and %s of the node",
                count_text(len(places), "endpoint"),
                list_text(places, _SHOWN),
                count_text(len(found), "connection"),
                sent,
                len(resets),
                why,
                count_text(closed, "socket"),
            )


def _is_unknown(members: Mapping[int, frozenset[Place]], departed: Departed) -> bool:
    """True if a Service, one of those whose endpoints are given, does not have this one."""
    service, place = departed
    return service in members and place not in members[service]


def _is_over(left: Mapping[Departed, float], departed: Departed, created: float) -> bool:
    """True if a connection is from the time before its endpoint left: that may be back by now."""
    return departed in left and created <= left[departed]
