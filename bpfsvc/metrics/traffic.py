"""Traffic of each Service: connections, packets and bytes, as counters that only grow.

The kernel counts for each backend. When a backend is removed, its entry is zeroed and given to
another backend. So the counts of removed backends are kept here, and added to the counts of the
present backends. These counts end with the agent, while the kernel's entries stay: Prometheus would
see a reset and then all traffic again. So the counts at the start are subtracted: everything is
counted from the start of the agent, as in any process.

The agent executes plans while the entries are read. If backends of a service port are removed
meanwhile, that service port is read again, alone; only for that the agent may wait in
:meth:`ServiceTraffic.written`.

A Service appears with its first connection: on most nodes most Services have none, and a cluster
has many nodes.

The text is written here, not by prometheus_client: with 10,000 Services it has 50,000 lines, for
which ``generate_latest`` takes 0.9 s and 12 MB, all in one step. Here they take 0.1 s, in parts of
a millisecond, between which other threads run.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Mapping

from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Counters, Entries, Sums
from bpfsvc.services.entries import ServicePort
from bpfsvc.services.plans.applied import Applied, AppliedState
from bpfsvc.services.plans.plan import Plan

SERVICE_LABELS = ("namespace", "name", "port", "protocol", "ip_family")
"""The labels that name a service port."""

FIELDS = ("connections", "packets", "bytes", "reply_packets", "reply_bytes")
"""The fields of the kernel's counters of a backend, in their order."""

_CONNECTIONS, _PACKETS, _BYTES, _REPLY_PACKETS, _REPLY_BYTES = range(len(FIELDS))

_REQUEST, _REPLY = ',direction="request"', ',direction="reply"'

_FAMILIES = (
    (
        "bpfsvc_service_connections_total",
        "Connections opened to a Service",
        (("", _CONNECTIONS),),
    ),
    (
        "bpfsvc_service_packets_total",
        "Packets translated for a Service; those of the node's own sockets need none",
        ((_REQUEST, _PACKETS), (_REPLY, _REPLY_PACKETS)),
    ),
    (
        "bpfsvc_service_bytes_total",
        "Bytes of the packets translated for a Service",
        ((_REQUEST, _BYTES), (_REPLY, _REPLY_BYTES)),
    ),
)
"""Name, description, and for each line: more labels, and the field that the line shows."""

_SERVICES_PER_PART = 100
"""Of the text."""

_ZEROS = (0,) * len(FIELDS)

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_COUNTS = struct.Struct(f"={len(FIELDS)}Q")


class _Counted:
    """Service ports and their counts, end to end in one buffer: there may be many."""

    def __init__(self) -> None:
        self.ports: list[Applied] = []
        self._counts = bytearray()

    def add(self, applied: Applied, counts: tuple[int, ...]) -> None:
        """Add a service port if it has counted anything."""
        if any(counts):
            self.ports.append(applied)
            self._counts += _COUNTS.pack(*counts)

    def labels(self) -> Iterator[str]:
        """Yield the labels in parts, a line for each service port."""
        for at in range(0, len(self.ports), _SERVICES_PER_PART):
            yield "\n".join(map(_labels, self.ports[at : at + _SERVICES_PER_PART]))

    def counts(self, part: int) -> Iterator[tuple[int, ...]]:
        """Return the counts for a part of the labels."""
        at, size = part * _SERVICES_PER_PART * _COUNTS.size, _SERVICES_PER_PART * _COUNTS.size
        return _COUNTS.iter_unpack(self._counts[at : at + size])


class ServiceTraffic:
    """The sums of all service ports."""

    def __init__(self, counters: Counters, applied_state: AppliedState) -> None:
        """``counters`` is for this object alone; the applied state is only read here.

        The counts so far of the service ports in the applied state are subtracted from now on.
        """
        self._sums = Sums(counters)
        self._applied_state = applied_state
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._removed: dict[int, tuple[int, ...]] = {}
        """By service id: the counts of removed backends, less the counts at the start."""
        self._changed: set[ServicePort] = set()
        self._pending: Mapping[ServicePort, Applied | None] = {}
        """Service ports that are in the kernel already, and not yet in the applied state."""
        ports = applied_state.snapshot()
        entries = self._entries(ports, Pace())
        for applied in ports:
            counts = self._sums.fields(entries.total(applied.counter_ids))
            if any(counts):
                self._removed[applied.service_id] = tuple(-count for count in counts)

    def written(self, plan: Plan) -> None:
        """Keep the counts of removed backends; the applied state still has these backends."""
        if not plan.counters_freed:
            self._pending = {}
            return
        with self._lock:
            for port, now in plan.applied.items():
                was = self._applied_state.of(port[:2]).get(port)
                if was is None:
                    continue
                gone = was.counter_ids - (now.counter_ids if now else set())
                if now is None:
                    self._removed.pop(was.service_id, None)
                    self._changed.add(port)
                elif gone:
                    self._removed[was.service_id] = self._with_removed(was.service_id, gone)
                    self._changed.add(port)
            self._pending = plan.applied

    def render(self) -> Iterator[bytes]:
        """Yield the text of all Services with traffic, in parts, with pauses."""
        pace = Pace()
        with self._reading:
            counted = self._counted(pace)
        parts = []
        for part in counted.labels():
            parts.append(part)
            pace()
        for name, text, lines in _FAMILIES:
            yield f"# HELP {name} {text}\n# TYPE {name} counter\n".encode()
            for number, part in enumerate(parts):
                pairs = zip(part.split("\n"), counted.counts(number), strict=True)
                yield "".join(
                    [
                        f"{name}{{{labels}{more}}} {counts[field]}\n"
                        for labels, counts in pairs
                        for more, field in lines
                    ]
                ).encode()
                pace()

    def _counted(self, pace: Pace) -> _Counted:
        """Return what all service ports have counted."""
        with self._lock:
            self._changed.clear()
            pending, removed = self._pending, dict(self._removed)
        ports = [
            now for was in self._applied_state.snapshot() if (now := pending.get(was.port, was))
        ]
        entries = self._entries(ports, pace)
        changed = self._read_changed()
        counted = _Counted()
        for applied in pace.over(ports):
            if applied.port in changed:
                continue
            counts = self._sums.fields(entries.total(applied.counter_ids))
            more = removed.get(applied.service_id)
            counted.add(applied, _clamped(_added(counts, more)) if more else counts)
        for port_counts in changed.values():
            if port_counts:
                counted.add(*port_counts)
        return counted

    def _entries(self, ports: list[Applied], pace: Pace) -> Entries:
        """Return the counters of the backends of service ports, read in one pass."""
        last = max((max(port.counter_ids, default=0) for port in pace.over(ports)), default=0)
        return self._sums.entries(last, pace)

    def _read_changed(self) -> dict[ServicePort, tuple[Applied, tuple[int, ...]] | None]:
        """Read the ports that changed meanwhile, without changes now; None for a removed port."""
        read: dict[ServicePort, tuple[Applied, tuple[int, ...]] | None] = {}
        with self._lock:
            for port in self._changed:
                now = self._pending.get(port, self._applied_state.of(port[:2]).get(port))
                read[port] = None
                if now:
                    counts = self._with_removed(now.service_id, now.counter_ids)
                    read[port] = now, _clamped(counts)
        return read

    def _with_removed(self, service_id: int, counter_ids: Iterable[int]) -> tuple[int, ...]:
        """Return the sum of some entries and of the counts of removed backends."""
        counts = self._sums.fields(sum(map(self._sums.entry, counter_ids)))
        return _added(counts, self._removed.get(service_id, _ZEROS))


def _added(counts: Iterable[int], more: Iterable[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(counts, more, strict=True))


def _clamped(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Replace counts below zero, which come from a map that another program has emptied."""
    return tuple(max(0, count) for count in counts)


def service_labels(applied: Applied) -> tuple[str, ...]:
    """Return the values of :data:`SERVICE_LABELS`; the number stands for a missing port name."""
    namespace, name, port_name, protocol, family = applied.port
    protocol_name = PROTOCOL_NAMES.get(protocol) or str(protocol)
    return namespace, name, port_name or str(applied.number), protocol_name, f"IPv{family}"


def _labels(applied: Applied) -> str:
    namespace, name, port, protocol, family = service_labels(applied)
    return (
        f'namespace="{escaped(namespace)}",name="{escaped(name)}",port="{escaped(port)}",'
        f'protocol="{protocol}",ip_family="{family}"'
    )


def escaped(value: str) -> str:
    """Return the value of a label as it is written between its quotes."""
    return value.translate(_ESCAPED)
