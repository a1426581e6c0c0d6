"""The backend that kube-proxy gave last to each client of a Service with session affinity."""

from __future__ import annotations

from collections import OrderedDict

from bpfsvc.services.entries import Place, ServicePort

_MOST_CLIENTS = 1 << 16

_MARGIN = 2.0
"""Seconds around the moment when affinity ends, and after the first connection of a client: two
connections that begin at once may be given two backends."""

_MOST_RECENT = 100
"""Clients of a service port for which kube-proxy's iptables mode keeps affinity with certainty: its
match ``recent`` remembers 100 for each backend, and forgets the oldest."""


class Affinities:
    """Remembers clients; the clients silent for longest are forgotten first."""

    def __init__(self, *, is_iptables: bool) -> None:
        """``is_iptables``: kube-proxy's mode, in which it forgets clients when there are many."""
        self._is_iptables = is_iptables
        self._last: OrderedDict[tuple[ServicePort, bytes], tuple[Place, float]] = OrderedDict()
        self._clients: dict[ServicePort, int] = {}

    def last(self, port: ServicePort, client: bytes, seconds: int, now: float) -> Place | None:
        """Return the backend that a client has to be given again; None if that is not certain."""
        backend, seen = self._last.get((port, client), (None, 0.0))
        if self._is_iptables and self._clients.get(port, 0) > _MOST_RECENT:
            return None
        return backend if _MARGIN < now - seen < seconds - _MARGIN else None

    def note(self, port: ServicePort, client: bytes, backend: Place, now: float) -> None:
        """Remember the backend that a client was given."""
        key = (port, client)
        if key not in self._last:
            self._clients[port] = self._clients.get(port, 0) + 1
        self._last[key] = (backend, now)
        self._last.move_to_end(key)
        if len(self._last) > _MOST_CLIENTS:
            (gone, _), _ = self._last.popitem(last=False)
            self._clients[gone] -= 1
