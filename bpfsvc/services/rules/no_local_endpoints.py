"""How many service ports keep to local endpoints and have none, over all Services."""

from __future__ import annotations

from collections import Counter

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.rules.view import PortCounts


class NoLocalEndpoints:
    """The sum of :attr:`EndpointSummary.without_local`, kept up to date Service by Service."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, PortCounts] = {}
        self._total: Counter[tuple[str, int]] = Counter()

    def update(self, key: ServiceKey, now: PortCounts) -> None:
        """Replace what one Service adds to the sum."""
        if before := self._of.pop(key, None):
            self._total.subtract(before)
        if now:
            self._of[key] = now
            self._total.update(now)

    def counts(self) -> dict[tuple[str, int], int]:
        """Return the sums for both policies and families, zeros included."""
        return {
            (policy, of_family): self._total[policy, of_family]
            for policy in ("internal", "external")
            for of_family in (4, 6)
        }
