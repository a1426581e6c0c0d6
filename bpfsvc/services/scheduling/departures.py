"""Which endpoints have left Services that do not keep their connections, and when these end.

Pure: the time is handed in. What an earlier agent knew is not needed: when a Service is seen for
the first time, its connections are searched for endpoints that it does not have, and those count as
having left at that moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.scheduling.removal import Members

Departed = tuple[int, Place]
"""A service id, and an endpoint that it does not have any more."""

SETTLED = 0.2
"""Seconds until no packet opens a connection any more that had found its backend before the
endpoint left: a program runs for microseconds.
"""

_AGAIN = 2.0
"""Seconds until sockets are looked for once more: the call that connects one may be interrupted
after its backend was chosen.
"""


class Due(NamedTuple):
    """Endpoints that are due, and until when connections to each began.

    * ``first``: connections to these end now.
    * ``again``: sockets that have come since, to endpoints that were due before.
    """

    first: Mapping[Departed, float]
    again: Mapping[Departed, float]


class Departures:
    """The endpoints that these Services have, and those that left them lately."""

    def __init__(self) -> None:
        self._members: dict[ServiceKey, Mapping[int, frozenset[Place]]] = {}
        self._seconds: dict[int, int] = {}
        self._left: dict[Departed, float] = {}
        self._ends: dict[Departed, float] = {}
        self._again: dict[Departed, float] = {}

    def update(
        self,
        key: ServiceKey,
        members: Members | None,
        ids: Mapping[ServicePort, int],
        now: float,
    ) -> set[int]:
        """Note what endpoints a Service has; ``members``: None if it keeps connections.

        Returns the service ids that are seen for the first time. Search their connections for
        backends that are no :meth:`members`, and give those to :meth:`add`.
        """
        before = self._members.pop(key, {})
        for service_id in before:
            del self._seconds[service_id]
        present: dict[int, frozenset[Place]] = {}
        if members:
            present = {
                ids[port]: endpoints for port, endpoints in members.endpoints.items() if port in ids
            }
            self._members[key] = present
            self._seconds |= dict.fromkeys(present, members.seconds)
        if before or present:
            self._forget(before, present)
        left = (
            (service_id, endpoint)
            for service_id, endpoints in before.items()
            if service_id in present
            for endpoint in endpoints - present[service_id]
        )
        self.add(left, now, until=now + SETTLED)
        for departed in self._ends:
            if departed[0] in present:
                at = max(now + self._seconds[departed[0]], self._left[departed])
                self._ends[departed] = min(self._ends[departed], at)
        return present.keys() - before.keys()

    def _forget(
        self, before: Mapping[int, frozenset[Place]], present: Mapping[int, frozenset[Place]]
    ) -> None:
        """Forget endpoints that are back, or of service ids that keep connections now."""
        over = [
            (service_id, endpoint)
            for service_id, endpoint in self._left
            if (service_id in before and service_id not in present)
            or endpoint in present.get(service_id, ())
        ]
        for departed in over:
            for all_of in (self._left, self._ends, self._again):
                all_of.pop(departed, None)

    def members(self, services: Collection[int]) -> dict[int, frozenset[Place]]:
        """Return the endpoints of some service ids."""
        return {
            service_id: endpoints
            for of_service in self._members.values()
            for service_id, endpoints in of_service.items()
            if service_id in services
        }

    def add(self, left: Iterable[Departed], now: float, *, until: float) -> None:
        """Note that endpoints have left; those that are known to have left stay as they are.

        ``until``: when the last packet may have opened a connection to them. Later ones are to an
        endpoint that is back, or has come since.
        """
        for departed in left:
            self._left.setdefault(departed, until)
            self._ends.setdefault(departed, max(now + self._seconds[departed[0]], until))

    @property
    def next_at(self) -> float | None:
        """When something is due; None if nothing will be."""
        return min((*self._ends.values(), *self._again.values()), default=None)

    def due(self, now: float) -> Due:
        """Return the endpoints that are due; call :meth:`done` when their connections are ended."""
        return Due(
            *(
                {departed: self._left[departed] for departed, at in all_of.items() if at <= now}
                for all_of in (self._ends, self._again)
            )
        )

    def done(self, due: Due, now: float) -> None:
        """Note that what was due has been carried out."""
        for departed in due.again:
            del self._again[departed]
        for departed in due.first:
            del self._ends[departed]
            self._again[departed] = now + _AGAIN
        for departed in due.again.keys() - due.first.keys():
            del self._left[departed]
