"""Tells the history which backends failed, by the counts of the programs.

The programs count failures by numbers, and observe nothing for that. The names are looked up here,
only for what has failed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from bpfsvc.agent.flows.failure_window import BackendCounts
from bpfsvc.agent.history.failures import FailureHistory
from bpfsvc.base.address import unpack
from bpfsvc.model.events import EventEnd, EventService
from bpfsvc.model.failures import BACKEND_RESET, REFUSED, UNANSWERED, UNREACHABLE, Failure
from bpfsvc.services.entries import Place
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.applied import Applied

_KINDS = (
    ("refused", REFUSED, BACKEND_RESET),
    ("unanswered", UNANSWERED, ""),
    ("unreachable", UNREACHABLE, ""),
)
"""Fields of counts, and kind and reason of what they count."""


class FailedBackends:
    """Belongs to the agent's thread."""

    def __init__(self, planner: Planner, history: FailureHistory) -> None:
        self._planner = planner
        self._history = history
        self._known: dict[int, BackendCounts] | None = None

    def update(self, counts: Mapping[int, BackendCounts]) -> None:
        """Note what was counted since the last call; the first call only remembers."""
        before, self._known = self._known, dict(counts)
        if before is None:
            return
        new = {}
        for index, counted in counts.items():
            since = _since(counted, before.get(index))
            if any(since):
                new[index] = since
        if new:
            for failure in self._failures(new):
                self._history.note(failure)

    def _failures(self, new: Mapping[int, tuple[int, ...]]) -> Iterator[Failure]:
        now = round(time.time(), 3)
        for port in self._planner.applied_state:
            if not port.counter_ids & new.keys():
                continue
            for backend, index in port.counters().items():
                if index not in new:
                    continue
                service, end = _service(port), self._end(port, backend)
                for (_, kind, reason), count in zip(_KINDS, new[index], strict=True):
                    if count:
                        yield Failure(service, kind, reason, end, count, now, now)

    def _end(self, port: Applied, backend: Place) -> str:
        """Return a backend, with its pod and node as its Service's slices name them."""
        address, number = backend
        for part in self._planner.cache.lookup((port.port.namespace, port.port.name)).slices:
            names = part.pod_names()
            for index, (endpoint, traits) in enumerate(part.endpoints()):
                if endpoint == address:
                    pod = f"{part.namespace}/{names[index]}" if names and names[index] else ""
                    return EventEnd(unpack(address), number, pod, traits.node).text
        return EventEnd(unpack(address), number).text


def _since(counted: BackendCounts, before: BackendCounts | None) -> tuple[int, ...]:
    """Return what failed since, by the order of the kinds."""
    after = [getattr(counted, field) for field, *_ in _KINDS]
    if before is None:
        return tuple(after)
    since = [now - getattr(before, field) for now, (field, *_) in zip(after, _KINDS, strict=True)]
    # Smaller counts than before are those of another backend.
    return tuple(after if min(since) < 0 else since)


def _service(port: Applied) -> str:
    name = port.port
    return EventService(name.namespace, name.name, name.port_name or str(port.number)).text
