"""Traffic of each Service: connections, packets and bytes, as counters that only ever grow.

The kernel counts for each backend, and a backend that leaves takes its counts along: its row is
zeroed and given to another. So what a service port's former backends counted is remembered here,
and added to what the present ones count. That memory ends with the agent while the kernel's rows
stay, and a sum of them alone would look to Prometheus like a reset and all that traffic anew. So
what was there at the start is subtracted: everything is counted from the start of the agent on,
as counters of a process are.

The agent writes plans while the rows are read. A service port whose backends leave meanwhile is
read again, alone, while the agent waits at :meth:`Traffic.written`, if ever it does.

A Service appears with its first connection: on most nodes most Services have none, and a cluster
has many nodes.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Mapping

from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Counters, Rows, Sums
from bpfsvc.metrics.text import escaped, head
from bpfsvc.plan import Plan
from bpfsvc.programmed import Ledger, Programmed
from bpfsvc.rows import PROTOCOL_NAMES, ServicePort

FIELDS = ("connections", "packets", "bytes", "reply_packets", "reply_bytes")
"""What the kernel counts for a backend, in its order."""

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
"""Names, their meaning, and what each line adds to the labels and takes from the counts."""

_AT_ONCE = 100
"""Services in one part of the text."""

_ZEROS = (0,) * len(FIELDS)

_ROW = struct.Struct(f"={len(FIELDS)}Q")


class _Counted:
    """Service ports with their counts: these end to end, for there may be many."""

    def __init__(self) -> None:
        self.ports: list[Programmed] = []
        self._counts = bytearray()

    def add(self, one: Programmed, counts: tuple[int, ...]) -> None:
        """Add one, if it has counted anything."""
        if any(counts):
            self.ports.append(one)
            self._counts += _ROW.pack(*counts)

    def labels(self) -> Iterator[str]:
        """Give the labels in parts, a line for each service port."""
        for at in range(0, len(self.ports), _AT_ONCE):
            yield "\n".join(map(_labels, self.ports[at : at + _AT_ONCE]))

    def counts(self, part: int) -> Iterator[tuple[int, ...]]:
        """Give the counts for a part of the labels."""
        at, size = part * _AT_ONCE * _ROW.size, _AT_ONCE * _ROW.size
        return _ROW.iter_unpack(self._counts[at : at + size])


class Traffic:
    """The sums of all service ports."""

    def __init__(self, counters: Counters, ledger: Ledger) -> None:
        """``counters`` is for this object alone; the ledger is somebody else's, and read only.

        Whatever is counted by now for what the ledger holds is left out of account.
        """
        self._sums = Sums(counters)
        self._ledger = ledger
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._former: dict[int, tuple[int, ...]] = {}
        """By service id, what former backends counted, less what was there at the start."""
        self._moved: set[ServicePort] = set()
        self._ahead: Mapping[ServicePort, Programmed | None] = {}
        """What is in the kernel already, and in the ledger soon."""
        ports = ledger.snapshot()
        rows = self._rows(ports, Pace())
        for one in ports:
            counts = self._sums.spread(rows.total(one.counter_ids))
            if any(counts):
                self._former[one.service_id] = tuple(-count for count in counts)

    def written(self, plan: Plan) -> None:
        """Keep what backends have counted that a plan has removed; the ledger has them still."""
        if not plan.counters_freed:
            self._ahead = {}
            return
        with self._lock:
            for port, now in plan.programmed.items():
                was = self._ledger.of(port[:2]).get(port)
                if was is None:
                    continue
                gone = was.counter_ids - (now.counter_ids if now else set())
                if now is None:
                    self._former.pop(was.service_id, None)
                    self._moved.add(port)
                elif gone:
                    self._former[was.service_id] = self._with_former(was.service_id, gone)
                    self._moved.add(port)
            self._ahead = plan.programmed

    def render(self) -> Iterator[bytes]:
        """Give the text of all Services with traffic, in parts, with pauses."""
        pace = Pace()
        with self._reading:
            counted = self._counted(pace)
        parts = []
        for part in counted.labels():
            parts.append(part)
            pace()
        for name, text, lines in _FAMILIES:
            yield head(name, "counter", text).encode()
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
        """Read what all service ports have counted."""
        with self._lock:
            self._moved.clear()
            ahead, former = self._ahead, dict(self._former)
        ports = [now for one in self._ledger.snapshot() if (now := ahead.get(one.port, one))]
        rows = self._rows(ports, pace)
        again = self._read_again()
        counted = _Counted()
        for one in pace.through(ports):
            if one.port in again:
                continue
            counts = self._sums.spread(rows.total(one.counter_ids))
            more = former.get(one.service_id)
            counted.add(one, _clamped(_added(counts, more)) if more else counts)
        for each in again.values():
            if each:
                counted.add(*each)
        return counted

    def _rows(self, ports: list[Programmed], pace: Pace) -> Rows:
        """Read the counters of the backends of service ports, all at one go."""
        last = max((max(one.counter_ids, default=0) for one in pace.through(ports)), default=0)
        return self._sums.until(last, pace)

    def _read_again(self) -> dict[ServicePort, tuple[Programmed, tuple[int, ...]] | None]:
        """Read what has moved since, row by row, while nothing moves; None for what is gone."""
        found: dict[ServicePort, tuple[Programmed, tuple[int, ...]] | None] = {}
        with self._lock:
            for port in self._moved:
                one = self._ahead.get(port, self._ledger.of(port[:2]).get(port))
                found[port] = None
                if one:
                    counts = self._with_former(one.service_id, one.counter_ids)
                    found[port] = one, _clamped(counts)
        return found

    def _with_former(self, service_id: int, rows: Iterable[int]) -> tuple[int, ...]:
        """Add rows to what former backends of a service port have counted."""
        counts = self._sums.spread(sum(map(self._sums.one, rows)))
        return _added(counts, self._former.get(service_id, _ZEROS))


def _added(counts: Iterable[int], former: Iterable[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(counts, former, strict=True))


def _clamped(counts: tuple[int, ...]) -> tuple[int, ...]:
    """Let nothing be below zero, as it is when somebody else has emptied the map."""
    return tuple(max(0, count) for count in counts)


def _labels(one: Programmed) -> str:
    """Give the labels of a service port; the number stands in for a port without a name."""
    namespace, name, port_name, protocol, family = one.port
    return (
        f'namespace="{escaped(namespace)}",name="{escaped(name)}",'
        f'port="{escaped(port_name) or one.number}",'
        f'protocol="{PROTOCOL_NAMES.get(protocol, protocol)}",ip_family="IPv{family}"'
    )
