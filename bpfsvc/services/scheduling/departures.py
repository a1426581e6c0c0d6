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
    """Endpoints whose time is over, and until when connections to each began.

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

        Returns the service ids that are seen for the first time: those backends of their
        connections that are no :meth:`members` are to be given to :meth:`add`.
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
        self.add(left, now, until=now + SETTLED)
        for departed in self._ends:
            if departed[0] in present:
                at = max(now + self._seconds[departed[0]], self._left[departed])
                self._ends[departed] = min(self._ends[departed], at)
        return present.keys() - before.keys()

    def _forget(
        self, before: Mapping[int, frozenset[Place]], present: Mapping[int, frozenset[Place]]
    ) -> None:
        """Forget endpoints that are back, and those of service ids that keep connections now."""
        over = [
            (one, place)
            for one, place in self._left
            if (one in before and one not in present) or place in present.get(one, ())
        ]
        for departed in over:
            for all_of in (self._left, self._ends, self._again):
                all_of.pop(departed, None)

    def members(self, services: Collection[int]) -> dict[int, frozenset[Place]]:
        """Return the endpoints of some service ids."""
        return {
            one: places
            for each in self._members.values()
            for one, places in each.items()
            if one in services
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
        """Return what is due now; :meth:`done` is to be called when that is carried out."""
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
