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
has many nodes. Which of the others appear is chosen in :mod:`.choice`.

The text is written here, not by prometheus_client: with 10,000 Services it has 50,000 lines, for
which ``generate_latest`` takes 0.9 s and 12 MB, all in one step. Here they take 0.1 s, in parts of
a millisecond, between which other threads run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from bpfsvc.base.protocols import PROTOCOL_NAMES
from bpfsvc.base.service_series import ALL, ServiceSeries
from bpfsvc.metrics.choice import OTHER, Choice, Counted
from bpfsvc.metrics.pace import Pace
from bpfsvc.metrics.sums import Counters, Sums
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

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_PACKETS_OF_CONNECTION = 10
"""How much traffic a connection is: those of sockets need no translated packet."""


def _score(fields: tuple[int, ...]) -> int:
    """Return how much traffic some counts are, in packets."""
    return _PACKETS_OF_CONNECTION * fields[_CONNECTIONS] + fields[_PACKETS] + fields[_REPLY_PACKETS]


class ServiceTraffic:
    """The sums of all service ports."""

    def __init__(
        self, counters: Counters, applied_state: AppliedState, series: ServiceSeries = ALL
    ) -> None:
        """``counters`` is for this object alone; the applied state is only read here.

        The counts so far of the service ports in the applied state are subtracted from now on.
        ``series``: the service ports that are shown one by one.
        """
        self._sums = Sums(counters)
        self._choice = Choice(series, self._sums, _score)
        self._applied_state = applied_state
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._removed: dict[int, int] = {}
        """By service id: the counts of removed backends, less the counts at the start."""
        self._changed: set[ServicePort] | None = None
        """Service ports that have changed while the counters are being read; None: they are not."""
        self._pending: Mapping[ServicePort, Applied | None] = {}
        """Service ports that are in the kernel already, and not yet in the applied state."""
        ports = applied_state.snapshot()
        self.backends = 0
        """How many entries of counters were in use when they were last read."""
        self._last = max((max(port.counter_ids, default=0) for port in ports), default=0)
        """No id of counters is larger; it never shrinks."""
        entries = self._sums.entries(self._last, Pace())
        for applied in ports:
            if counts := entries.total(applied.counter_ids):
                self._removed[applied.service_id] = -counts

    def written(self, plan: Plan) -> None:
        """Keep the counts of removed backends; the applied state still has these backends."""
        self._last = max(self._last, *plan.counters_taken, 0)
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
                    self._choice.removed(was.service_id, partial(self._counts, was))
                    self._removed.pop(was.service_id, None)
                elif gone:
                    self._removed[was.service_id] = self._with_removed(was.service_id, gone)
                else:
                    continue
                if self._changed is not None:
                    self._changed.add(port)
            self._pending = plan.applied

    def render(self) -> Iterator[bytes]:
        """Yield the text of all Services with traffic, in parts, with pauses."""
        pace = Pace()
        with self._reading:
            try:
                shown, others = self._shown(pace)
            finally:
                with self._lock:
                    self._changed = None
        fields = self._sums.fields
        parts = []
        for at in range(0, len(shown), _SERVICES_PER_PART):
            part = shown[at : at + _SERVICES_PER_PART]
            labels = "\n".join([_labels(applied) for applied, _ in part])
            parts.append((labels, [counts for _, counts in part]))
            pace()
        for name, text, lines in _FAMILIES:
            yield f"# HELP {name} {text}\n# TYPE {name} counter\n".encode()
            for joined, numbers in parts:
                pairs = zip(joined.split("\n"), map(fields, numbers), strict=True)
                yield _text(name, lines, pairs)
                pace()
            if others:
                yield _text(name, lines, [(label_list(OTHER), others)])

    def _shown(self, pace: Pace) -> tuple[Sequence[Counted], tuple[int, ...]]:
        """Return the service ports to show with their counts, and the sum of the others."""
        with self._lock:
            self._changed = set()
            pending, removed = self._pending, dict(self._removed)
        ports = self._applied_state.snapshot()
        if pending:
            ports = [now for was in ports if (now := pending.get(was.port, was))]
        entries = self._sums.entries(self._last, pace)
        counted, backends = [], 0
        for applied in pace.over(ports):
            ids = applied.counter_ids
            backends += len(ids)
            counts = entries.total(ids)
            if more := removed.get(applied.service_id):
                counts = self._clamped(counts + more)
            if counts:
                counted.append((applied, counts))
        self.backends = backends
        with self._lock:
            if changed := self._read_now(self._changed):
                counted = [item for item in counted if item[0].port not in changed]
                counted += [item for item in changed.values() if item and item[1]]
            return self._choice.split(counted)

    def _read_now(self, ports: Iterable[ServicePort]) -> dict[ServicePort, Counted | None]:
        """Read service ports; None for one that is gone. With the lock."""
        read: dict[ServicePort, Counted | None] = {}
        for port in ports:
            now = self._pending.get(port, self._applied_state.of(port[:2]).get(port))
            read[port] = (now, self._counts(now)) if now else None
        return read

    def _counts(self, applied: Applied) -> int:
        """Return what a service port has counted, read at once."""
        return self._clamped(self._with_removed(applied.service_id, applied.counter_ids))

    def _with_removed(self, service_id: int, counter_ids: Iterable[int]) -> int:
        """Return the sum of some entries and of the counts of removed backends."""
        return sum(map(self._sums.entry, counter_ids), self._removed.get(service_id, 0))

    def _clamped(self, counts: int) -> int:
        """Replace counts below zero, which come from a map that another program has emptied."""
        if self._sums.is_not_negative(counts):
            return counts
        return self._sums.number(self._sums.not_negative(counts))


def _text(
    name: str,
    lines: tuple[tuple[str, int], ...],
    services: Iterable[tuple[str, tuple[int, ...]]],
) -> bytes:
    """Return the lines of one family for some labels with their counts."""
    return "".join(
        [
            f"{name}{{{labels}{more}}} {counts[field]}\n"
            for labels, counts in services
            for more, field in lines
        ]
    ).encode()


def service_labels(applied: Applied) -> tuple[str, ...]:
    """Return the values of :data:`SERVICE_LABELS`; the number stands for a missing port name."""
    namespace, name, port_name, protocol, family = applied.port
    protocol_name = PROTOCOL_NAMES.get(protocol) or str(protocol)
    return namespace, name, port_name or str(applied.number), protocol_name, f"IPv{family}"


def labelled(
    shown: Iterable[Counted], others: tuple[int, ...], fields: Callable[[int], tuple[int, ...]]
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Yield the values of :data:`SERVICE_LABELS` and the fields of what :class:`Choice` returns."""
    for applied, counts in shown:
        yield service_labels(applied), fields(counts)
    if others:
        yield OTHER, others


def _labels(applied: Applied) -> str:
    return label_list(service_labels(applied))


def label_list(values: tuple[str, ...]) -> str:
    """Return the values of :data:`SERVICE_LABELS` as they are written between the braces."""
    namespace, name, port, protocol, family = values
    return (
        f'namespace="{escaped(namespace)}",name="{escaped(name)}",port="{escaped(port)}",'
        f'protocol="{protocol}",ip_family="{family}"'
    )


def escaped(value: str) -> str:
    """Return the value of a label as it is written between its quotes."""
    return value.translate(_ESCAPED)
