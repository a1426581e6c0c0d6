"""Endpoints that leave a Service and come back to it soon: their readiness flaps.

A rollout or a scaling changes endpoints, too; but then others come than those that left.
"""

from __future__ import annotations

from bpfsvc.model.answers import ChangeRecord
from bpfsvc.services.plans.changes import CHANGED

SECONDS = 600.0
"""Who comes back later has not flapped."""

_ROOM = 4096
"""Endpoints that left and are remembered, at most."""


class ReturnedEndpoints:
    """Counts endpoints that come back to a Service within ten minutes."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], float] = {}
        """By Service and endpoint, the oldest first."""

    def note(self, record: ChangeRecord) -> int:
        """Return how many endpoints a change has brought back to their Service."""
        if record.what != CHANGED:
            return 0
        (service,) = record.services
        returned = 0
        for endpoint in record.endpoints.added:
            left = self._left.pop((service, endpoint), None)
            returned += left is not None and record.at - left <= SECONDS
        for endpoint in record.endpoints.removed:
            self._left.pop((service, endpoint), None)
            self._left[service, endpoint] = record.at
        while len(self._left) > _ROOM:
            del self._left[next(iter(self._left))]
        return returned
