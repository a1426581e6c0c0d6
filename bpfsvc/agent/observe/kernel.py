"""The kernel's side of events: what the programs are asked for, and what they have written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from socket import ntohs
from typing import NamedTuple

from bpfsvc.agent.observe.names import Names
from bpfsvc.base.errors import KernelError
from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.ring_buffer import RingBuffer
from bpfsvc.model.events import VERDICTS, Event
from bpfsvc.services.cache import Cache

FAILURES = ("refused", "dropped")
"""Kinds of events that are always asked for: they are few, and asked about afterwards."""

ELSEWHERE = "dropped_elsewhere"
"""The kind of event that is asked for by readers who want it."""

_KEY = bytes(4)


class _Told(NamedTuple):
    """The fields of ``struct event`` that are read, in its order; ports in network order."""

    time: int
    took_us: int
    client: bytes
    frontend: bytes
    backend: bytes
    client_port: int
    frontend_port: int
    backend_port: int
    protocol: int
    kind: int
    service: int
    counters: int
    sample: int
    reason: int
    path: int
    masquerade: int


_TIMED = ("answered", "repeated", "ended")
"""Kinds that have the time since the client's first packet; what a reset refuses has it, too."""


class Asked(NamedTuple):
    """What the programs are asked for: ``struct observed``."""

    all_kinds: bool
    connections: int
    failures: int
    elsewhere: bool = False


class KernelEvents:
    """Reads the events of one build; belongs to one thread. Raises :class:`KernelError`."""

    def __init__(
        self,
        pinned: Pinned,
        cache: Cache,
        node: str,
        kernel_reason: Callable[[int], str],
        count_drop: Callable[[int, str, int], None],
    ) -> None:
        """``pinned``: of this object alone, which closes it.

        ``kernel_reason``: returns the name of a reason of ``dropped_elsewhere``.
        ``count_drop``: is called for each such event, with the id of the service port, the name of
        the reason, and for how many packets the event stands.
        """
        self._kernel_reason = kernel_reason
        self._count_drop = count_drop
        self._pinned = pinned
        self._node = node
        layout = pinned.layout
        if "events" not in layout.maps:
            raise KernelError("the programs of this build tell of no events")
        self._observed = pinned.map("observed")
        self._asked_record = layout.maps["observed"].value
        self._counters = pinned.map("counters")
        self._counters_layout = layout.maps["counters"]
        events = pinned.map("events")
        record = layout.struct("event")
        self._unpack = record.pick(*_Told._fields).unpack
        self._numbers = {kind: layout.constant(f"EVENT_{kind.upper()}") for kind in VERDICTS}
        self._kinds = {number: kind for kind, number in self._numbers.items()}
        self._reasons = layout.constants_named("EVENT_REASON_")
        self._paths = layout.constants_named("EVENT_BY_")
        self._names = Names(pinned, cache)
        self._ring = RingBuffer(events.fd, events.max_entries)
        self._lost = self._count_lost()

    def ask(self, asked: Asked) -> None:
        """Have the programs tell of all kinds of events, or of failures alone."""
        kinds = {*self._numbers} - {ELSEWHERE} if asked.all_kinds else {*FAILURES}
        if asked.elsewhere:
            kinds.add(ELSEWHERE)
        entry = {
            "kinds": sum(1 << self._numbers[kind] for kind in kinds),
            "connections": asked.connections,
            "failures": asked.failures,
        }
        self._observed.update(_KEY, self._asked_record.pack(entry))

    def lost(self) -> int:
        """Return how many events were lost since the last call: the ring was full."""
        before, self._lost = self._lost, self._count_lost()
        return self._lost - before

    def read(self, most: int) -> Iterator[Event]:
        """Yield the events that came since the last call, at most so many."""
        self._names.refresh()
        begin = time.time() - time.monotonic()
        for record in self._ring.read(most):
            yield self._event(record, begin)

    def skip(self) -> None:
        """Forget what an earlier agent has not read."""
        self._ring.skip()

    def close(self) -> None:
        """Ask for nothing any more, and close everything."""
        with suppress(KernelError):
            self._observed.update(_KEY, bytes(self._asked_record.size))
        self._ring.close()
        self._pinned.close()

    def _count_lost(self) -> int:
        lost = self._counters_layout.value.pick("events_lost")
        raw = self._counters.lookup(_KEY) or b""
        return sum(int(lost.unpack(part)[0]) for part in self._counters_layout.cpu_values(raw))

    def _event(self, record: bytes, begin: float) -> Event:
        told = _Told._make(self._unpack(record))
        kind, reason = self._kinds[told.kind], self._reasons[told.reason]
        names = self._names
        if reason == "no_endpoints":
            reason = self._why_none(told)
        if kind == ELSEWHERE:
            reason = self._kernel_reason(told.counters)
            self._count_drop(told.service, reason, told.sample)
        timed = kind in _TIMED or reason == "backend_reset"
        return Event(
            round(begin + told.time / 1e9, 6),
            self._node,
            kind,
            "" if reason == "none" else reason,
            self._paths[told.path],
            PROTOCOL_NAMES.get(told.protocol, str(told.protocol)),
            names.service(told.service),
            names.end(told.client, ntohs(told.client_port)),
            names.end(told.frontend, ntohs(told.frontend_port)),
            names.end(told.backend, ntohs(told.backend_port)),
            self._chosen_by(told) if kind == "made" else "",
            bool(told.masquerade),
            told.took_us / 1000 if timed else None,
            told.sample,
        )

    def _chosen_by(self, told: _Told) -> str:
        return self._names.chosen_by(told.frontend, ntohs(told.frontend_port), told.protocol)

    def _why_none(self, told: _Told) -> str:
        """Return the reason why nothing serves, which the program does not tell apart."""
        if not told.service:
            return "no_service"
        port = ntohs(told.frontend_port)
        has = self._names.has_frontend(told.frontend, port, told.protocol)
        return "no_endpoints" if has else "no_such_port"
