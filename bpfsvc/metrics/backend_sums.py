"""Sums of service ports, of a map that counts by backend and has no entry before the first count.

The kernel counts for each backend, and forgets a backend that is removed. So what is counted
between two scrapes is added here to the sums of service ports. What is counted between the last
scrape and the removal of its backend is not in the sums.

Counts of several fields are one number, with the fields side by side (:mod:`.sums`).
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator

from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.metrics.choice import Choice, Counted
from bpfsvc.metrics.kernel_maps import BackendHash
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Sums
from bpfsvc.metrics.traffic import labelled
from bpfsvc.services.plans.applied import AppliedState

_ID = struct.Struct("=I")


class BackendSums:
    """The sums since the start of the agent: service ports that have counted anything."""

    def __init__(
        self,
        counts: BackendHash,
        applied_state: AppliedState,
        series: ServiceSeries,
        score: Callable[[tuple[int, ...]], int] = sum,
    ) -> None:
        """``counts`` is for this object alone; ``score(fields)``: how much some counts are."""
        self._counts = counts
        self._sums = Sums(counts)
        self._choice = Choice(series, self._sums, score)
        self._applied_state = applied_state
        self._lock = threading.Lock()
        self._known = self._read()
        self._totals: dict[int, int] = {}
        """By service id."""

    def rows(self) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
        """Yield labels and fields of the service ports that are shown, and of the sum of others."""
        with self._lock:
            shown, others = self._choice.split(self._counted())
        return labelled(shown, others, self._sums.fields)

    def _counted(self) -> list[Counted]:
        """Return the service ports with counts; what was counted since the last call is added."""
        ports = self._applied_state.snapshot()
        new = self._new()
        totals = self._totals
        for port in Pace().over(ports) if new else ():
            for index in port.counter_ids & new.keys():
                totals[port.service_id] = totals.get(port.service_id, 0) + new[index]
        return self._choice.counted(totals, ports) if totals else []

    def _new(self) -> dict[int, int]:
        """Return what each backend has counted since the last call."""
        before, self._known = self._known, self._read()
        new = {}
        for index, counts in self._known.items():
            # Smaller counts than before are those of another backend.
            since = counts - before.get(index, 0)
            new[index] = since if self._sums.is_not_negative(since) else counts
        return {index: since for index, since in new.items() if since}

    def _read(self) -> dict[int, int]:
        fold = self._sums.fold
        return {_ID.unpack(key)[0]: fold(raw) for key, raw in Pace().over(self._counts.items())}
