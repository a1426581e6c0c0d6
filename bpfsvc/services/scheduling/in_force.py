"""The scheduling in force of each Service: its annotations, and the state of its endpoints.

The last good values of annotations are remembered, for the few Services that have annotations.
What a former agent knew is lost: after a restart, a bad value counts as none.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.model import EndpointSlice, Service
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.scheduling.annotations import (
    USUAL_SCHEDULING,
    Scheduling,
    has_annotations,
    read_scheduling,
)
from bpfsvc.services.scheduling.quarantine import Quarantines
from bpfsvc.services.scheduling.slow_start import SlowStarts


class Schedulings:
    """The values in force of all Services, and the faults of their annotations."""

    def __init__(self) -> None:
        self._in_force: dict[ServiceKey, Scheduling] = {}
        self._faults: dict[ServiceKey, str] = {}
        self._slow_starts = SlowStarts()
        self.quarantines = Quarantines()

    def read(
        self,
        key: ServiceKey,
        service: Service | None,
        slices: Iterable[EndpointSlice],
        now: float,
    ) -> Scheduling:
        """Return the scheduling of a Service, and remember it for the next call.

        ``now``: seconds of a monotonic clock.
        """
        before = self._in_force.pop(key, USUAL_SCHEDULING) if self._in_force else USUAL_SCHEDULING
        if self._faults:
            self._faults.pop(key, None)
        if service is None or not service.is_proxied or not has_annotations(service, slices):
            self._slow_starts.forget(key)
            self.quarantines.forget(key)
            return USUAL_SCHEDULING
        scheduling, faults = read_scheduling(service, slices, before)
        if faults:
            self._faults[key] = "; ".join(faults)
        if scheduling.quarantine:
            away, trial = self.quarantines.watch(key, scheduling.quarantine)
            scheduling = scheduling._replace(away=away, trial=trial)
        else:
            self.quarantines.forget(key)
        if seconds := scheduling.slow_start_seconds:
            shares = self._slow_starts.read(key, seconds, slices, now)
            scheduling = scheduling._replace(shares=shares)
        else:
            self._slow_starts.forget(key)
        self._in_force[key] = scheduling
        return scheduling

    def in_force(self, key: ServiceKey) -> Scheduling:
        """Return the scheduling that :meth:`read` returned last; any thread may ask."""
        return self._in_force.get(key, USUAL_SCHEDULING)

    def growing(self, now: float) -> set[ServiceKey]:
        """Return the Services to be planned again now, as an endpoint's share grows."""
        return self._slow_starts.due(now)

    def fault(self, key: ServiceKey) -> str:
        """Return the faults of the annotations of a Service, "" if there are none."""
        return self._faults.get(key, "")
