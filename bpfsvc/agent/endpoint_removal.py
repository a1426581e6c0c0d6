"""TCP connections to endpoints that left a Service: reset at once, or when they have drained.

Only for Services that ask for it (:mod:`bpfsvc.services.removal`). The entries of a connection are
removed, and both of its sides get a reset with the number that they acknowledged last. One that has
received more since ignores it, and is about to acknowledge: its next packet is answered by a reset
(``bpf/path/conn_unknown.h``, or by the client's or the node's own TCP). Sockets of the node, of
which there are no entries, are closed. Those of pods are not translated where a Service asks for
this.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from socket import IPPROTO_TCP

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.tcp_connections import TcpConnections
from bpfsvc.datapath.maps.tcp_sockets import TcpSockets
from bpfsvc.datapath.resets import send
from bpfsvc.metrics.observer import Observer
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.departures import Departed, Departures
from bpfsvc.services.planner import Planner
from bpfsvc.services.view import EndpointSummary

_SHOWN = 3
"""Endpoints that a line of the log names."""

_log = logging.getLogger("bpfsvc")


class EndpointRemoval:
    """Follows which endpoints left; belongs to the agent's thread."""

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
        self._departures = Departures()
        self._connections = TcpConnections(pinned)
        self._sockets = TcpSockets(pinned) if with_sockets else None

    def follow(self, summaries: Mapping[ServiceKey, EndpointSummary]) -> None:
        """Note the endpoints of some Services, whose entries are in the kernel, and act on it.

        One that found no room goes on choosing the endpoints that it had; it is noted when it has.
        """
        now = self._clock()
        seen: set[int] = set()
        for key, summary in summaries.items():
            if key in self._planner.refused:
                continue
            if summary.members is None and not self._departures.follows(key):
                continue  # as nearly all
            ids = {
                port: one.service_id
                for port, one in self._planner.applied_state.of(key).items()
                if port.protocol == IPPROTO_TCP
            }
            seen |= self._departures.update(key, summary.members, ids, now)
        if seen:
            found = self._connections.backends(seen)
            if self._sockets:
                found |= self._sockets.backends(seen)
            self._departures.add(self._departures.unknown(found), now)
        self.carry_out()

    def carry_out(self) -> None:
        """End the connections whose time is over."""
        due = self._departures.due(self._clock())
        if due:
            self._end(due)

    def _end(self, due: Collection[Departed]) -> None:
        found = self._connections.to(due)
        resets = self._connections.remove(found)
        try:
            sent, why = send(resets), ""
        except PermissionError:
            sent, why = 0, " (the agent needs CAP_NET_RAW to send them)"
        closed = self._sockets.close(due) if self._sockets else 0
        self._metrics.removal_resets(len(found), closed)
        if found or closed:
            places = sorted({endpoint_text(*place) for _, place in due})
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
