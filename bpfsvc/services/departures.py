"""Which endpoints have left Services that do not keep their connections, and when these end.

Pure: the time is handed in. What an earlier agent knew is not needed: when a Service is seen for
the first time, its connections are searched for endpoints that it does not have, and those count as
having left at that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Place, ServicePort
from bpfsvc.services.removal import Members

Departed = tuple[int, Place]
"""A service id, and an endpoint that it does not have any more."""

_AGAIN = 2.0
"""Seconds until connections are looked for once more: a packet that had found its backend before
the endpoint left may have opened one since.
"""


class Departures:
    """The endpoints that these Services have, and those that left them lately."""

    def __init__(self) -> None:
        self._members: dict[ServiceKey, Mapping[int, frozenset[Place]]] = {}
        self._seconds: dict[int, int] = {}
        self._ends: dict[Departed, float] = {}
        self._again: dict[Departed, float] = {}

    def follows(self, key: ServiceKey) -> bool:
        """True if the Service did not keep connections at the last update."""
        return key in self._members

    def update(
        self,
        key: ServiceKey,
        members: Members | None,
        ids: Mapping[ServicePort, int],
        now: float,
    ) -> set[int]:
        """Note what endpoints a Service has; ``members``: None if it keeps connections.

        Returns the service ids that are seen for the first time: what :meth:`unknown` says of
        their connections is to be given to :meth:`add`.
        """
        before = self._members.pop(key, {})
        for one in before:
            del self._seconds[one]
        present: dict[int, frozenset[Place]] = {}
        if members:
            present = {
                ids[port]: places for port, places in members.endpoints.items() if port in ids
            }
        if present and members:
            self._members[key] = present
            self._seconds |= dict.fromkeys(present, members.seconds)
        if before or present:
            self._forget(before, present)
        left = (
            (one, place)
            for one, places in before.items()
            if one in present
            for place in places - present[one]
        )
        self.add(left, now)
        for departed in self._ends:
            if departed[0] in present:
                self._ends[departed] = min(self._ends[departed], now + self._seconds[departed[0]])
        return present.keys() - before.keys()

    def _forget(
        self, before: Mapping[int, frozenset[Place]], present: Mapping[int, frozenset[Place]]
    ) -> None:
        """Forget endpoints that are back, and those of service ids that keep connections now."""
        for all_of in (self._ends, self._again):
            over = [
                (one, place)
                for one, place in all_of
                if (one in before and one not in present) or place in present.get(one, ())
            ]
            for departed in over:
                del all_of[departed]

    def unknown(self, found: Iterable[Departed]) -> set[Departed]:
        """Return those endpoints of some connections that their Service does not have."""
        members = {one: places for each in self._members.values() for one, places in each.items()}
        return {
            (one, place) for one, place in found if one in members and place not in members[one]
        }

    def add(self, left: Iterable[Departed], now: float) -> None:
        """Note that endpoints have left; those that are known to have left stay as they are."""
        for departed in left:
            self._ends.setdefault(departed, now + self._seconds[departed[0]])

    def due(self, now: float) -> set[Departed]:
        """Return the endpoints to which connections are to end now; each is returned twice."""
        found = {departed for departed, at in self._ends.items() if at <= now}
        last = {departed for departed, at in self._again.items() if at <= now}
        for departed in found:
            del self._ends[departed]
        for departed in last:
            del self._again[departed]
        self._again |= dict.fromkeys(found, now + _AGAIN)
        return found | last
