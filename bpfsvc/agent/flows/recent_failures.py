"""Reads from the kernel what failed lately, for the commands of this node.

On a node where nothing fails, this reads two empty maps.
"""

from __future__ import annotations

import struct
import sys

from bpfsvc.agent.flows.failed_backends import FailedBackends
from bpfsvc.agent.flows.failure_window import BackendCounts, BackendWindow, CountWindow
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.metrics.sums import Sums
from bpfsvc.model.answers import FailureAnswer, ServiceRefusals

_ID = struct.Struct("=I")


class RecentFailures:
    """Belongs to the agent's thread; ``answer`` is replaced as a whole, for any thread."""

    def __init__(self, pinned: Pinned, backends: FailedBackends) -> None:
        """``backends`` are told what is read."""
        self._backends = backends
        self._failures = pinned.map("backend_failures")
        self._refusals = pinned.map("refusals")
        self._counters = Sums(pinned.map("backend_counters"))
        self._failed = Sums(self._failures)
        self._refused = Sums(self._refusals)
        layouts = pinned.layout.maps
        self._failure_names = layouts["backend_failures"].value.names
        self._refusal_names = layouts["refusals"].value.names
        self._at_connections = layouts["backend_counters"].value.names.index("connections")
        self._windows: tuple[BackendWindow, CountWindow] | None = None
        self.answer = FailureAnswer()

    def update(self, now: float) -> None:
        """Compare again; ``now``: seconds of the monotonic clock."""
        backends, services = self._read_backends(), self._read_refusals()
        self._backends.update(backends)
        if self._windows is None:
            self._windows = BackendWindow(backends, now), CountWindow(services, now)
            return
        failures, refusals = self._windows
        recent = failures.update(backends, now)
        refusals.turn(services, now)
        refused = []
        for service, counted in services.items():
            since, _ = refusals.since(service, counted, (0,) * len(counted))
            counts = dict(zip(self._refusal_names, since, strict=True))
            if any(since):
                by_reason = {name: count for name, count in counts.items() if count}
                refused.append(ServiceRefusals(service=service, counts=by_reason))
        seconds = round(failures.seconds(now))
        self.answer = FailureAnswer(seconds=seconds, backends=recent, refusals=refused)

    def _read_backends(self) -> dict[int, BackendCounts]:
        counts = {}
        for key, raw in self._failures.items():
            index = _ID.unpack(key)[0]
            fields = self._failed.fields(self._failed.fold(raw))
            by_name = dict(zip(self._failure_names, fields, strict=True))
            traffic = self._counters.fields(self._counters.entry(index))
            counts[index] = BackendCounts(traffic[self._at_connections], **by_name)
        return counts

    def _read_refusals(self) -> dict[int, tuple[int, ...]]:
        return {
            int.from_bytes(key, sys.byteorder): self._refused.fields(self._refused.fold(raw))
            for key, raw in self._refusals.items()
        }
