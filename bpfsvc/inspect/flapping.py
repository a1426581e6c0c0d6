"""Endpoints that left their Service again and again, among the changes that an agent remembers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bpfsvc.base.texts import count_text
from bpfsvc.model.answers import ChangeRecord
from bpfsvc.services.plans.changes import CHANGED

_OFTEN = 3
"""Who leaves and comes back so many times has not been part of a rollout."""


@dataclass(slots=True)
class Flapping:
    """An endpoint of a Service that left and came back.

    ``first``, ``last``: when it left, and when that or its return was last, in Unix seconds.
    """

    service: str
    endpoint: str
    left: int
    returned: int
    first: float
    last: float

    def text(self) -> str:
        """Return what happened, without its times."""
        return (
            f"{self.service}: {self.endpoint} FLAPS: it left {count_text(self.left, 'time')}"
            f" and came back {count_text(self.returned, 'time')}; look at the readiness probe"
            " of its pod"
        )


def flapping(changes: Iterable[ChangeRecord]) -> list[Flapping]:
    """Return the endpoints that left often and came back; the last to change is the last."""
    seen: dict[tuple[str, str], Flapping] = {}
    for change in changes:
        if change.what != CHANGED:
            continue
        (service,) = change.services
        for endpoint in change.endpoints.removed:
            known = seen.setdefault(
                (service, endpoint), Flapping(service, endpoint, 0, 0, change.at, change.at)
            )
            known.left += 1
            known.last = change.at
        for endpoint in change.endpoints.added:
            if known_before := seen.get((service, endpoint)):
                known_before.returned += 1
                known_before.last = change.at
    often = (known for known in seen.values() if min(known.left, known.returned + 1) >= _OFTEN)
    return sorted(often, key=lambda known: known.last)
