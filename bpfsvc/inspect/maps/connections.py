"""Records of connections: up to four entries of two maps, shown as the one connection they are.

Every entry of a connection gives the same *routed* flow, client to backend as the kernel routes it
between the hooks (see ``bpf/maps/connections.h``), and no two connections share one. So the
routed flow is what entries are gathered by, whichever of them is read first or was evicted::

    forward             client -> frontend    ingress    becomes the routed flow
    reply               backend -> client     egress     is the routed flow, reversed
    masquerade          client -> backend     egress     is the routed flow
    masquerade's reply  backend -> node       ingress    becomes the routed flow, reversed

Entries are folded when they are read, so that each connection is one small object.
"""

from __future__ import annotations

from dataclasses import dataclass
from socket import IPPROTO_TCP

from bpfsvc.base.address import endpoint_text
from bpfsvc.inspect.fields import chooser, protocol_text
from bpfsvc.inspect.maps.generic import Extras, extras
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.services.entries import Frontend, frontend_text

FLOW = ("source", "source_port", "destination", "destination_port", "protocol", "hook")
CONNECTION = (
    *(f"after.{part}" for part in FLOW[:4]),
    "created",
    "seen",
    "service",
    "reply",
    "replied",
    "established",
    "fin_sent",
    "fin_received",
    "reset",
    "masquerade_pending",
    "masquerade",
)
_KNOWN = (
    *CONNECTION,
    "after.protocol",
    "after.hook",
    "counters",
    "held",
    "stack_turn",
)
"""Fields that a record shows, or leaves out on purpose."""

_NEVER = 1 << 64

Place = tuple[bytes, int]
"""Address and port."""


@dataclass(slots=True)
class _Connection:
    """One connection, as the entries read so far show it."""

    client: Place | None = None
    frontend: Place | None = None
    masquerade: Place | None = None
    more: Row | None = None
    pending: bool = False
    answered: bool = False
    established: bool = False
    reset: bool = False
    fins: int = 0
    created: int = _NEVER
    seen: int = 0
    service: int = 0

    def state(self, protocol: int) -> str:
        """Return the state in TCP's words, or in those of conntrack where TCP has none."""
        if self.reset:
            return "RESET"
        if self.fins:
            if self.client is None:
                return "TIME_WAIT"
            return "CLOSED" if self.fins > 1 else "FIN_WAIT"
        if self.established:
            return "ESTABLISHED"
        if protocol != IPPROTO_TCP:
            return "REPLIED" if self.answered else "UNREPLIED"
        return "SYN_RECEIVED" if self.answered else "SYN_SENT"


Routed = tuple[int, Place, Place]
"""Protocol, client, backend."""


def connections(reader: Reader, now: int) -> Records:
    """Return all connections, established or not. ``now`` is CLOCK_MONOTONIC in ns.

    * ``frontend`` is empty for a connection to a backend's own address with a changed source port.
    * ``masquerade`` is the address that the backend sees in place of the client's; ``pending``
      until the first packet leaves. Where netfilter masquerades, only the port differs.
    * ``state`` is TIME_WAIT for a masquerade that is kept although its connection is gone.
    * ``translation`` names the rewritten fields: ``destination``, ``source`` (masquerade) and
      ``source-port``, with the client's port between the hooks.
    * ``age`` and ``idle`` are seconds.
    """
    by_flow: dict[Routed, _Connection] = {}
    # An entry that moves is deleted where it was after it is written where it goes: read in this
    # order, no connection is missed. Seen twice, the entries fold into the same connection.
    for name in ("new_connections", "connections"):
        if name in reader.layout.maps:
            _gather(reader, name, by_flow)
    names = ServiceNames(reader)
    more = _extras(reader, "connections")
    rows = [_row(routed, by_flow.pop(routed), names, now, more) for routed in sorted(by_flow)]
    columns = (
        "protocol",
        "client",
        "frontend",
        "service",
        "backend",
        "masquerade",
        "translation",
        "state",
        "age",
        "idle",
        *more.columns,
    )
    return Records("connections", columns, rows, frozenset({"age", "idle"}))


def _extras(reader: Reader, name: str) -> Extras:
    return extras(reader.layout.maps[name], FLOW, _KNOWN)


def _gather(reader: Reader, name: str, by_flow: dict[Routed, _Connection]) -> None:
    layout = reader.layout.maps[name]
    key, value = chooser(layout.key, FLOW), chooser(layout.value, CONNECTION)
    more = _extras(reader, name)
    addresses: dict[bytes, bytes] = {}
    kept = addresses.setdefault  # keeps each address in memory once
    hook_ingress = reader.layout.constant("HOOK_INGRESS")
    certain = reader.layout.constants.get("RESET_CERTAIN", 1)  # earlier builds have no other
    for raw_key, raw in reader.entries(name):
        source, sport, destination, dport, protocol, hook = key(raw_key)
        after_source, after_sport, after_destination, after_dport, *rest = value(raw)
        created, seen, service, reply, replied, established, *rest = rest
        fin_sent, fin_received, reset, pending, masquerades = rest
        sender, receiver = (kept(source, source), sport), (kept(destination, destination), dport)
        after_sender = kept(after_source, after_source), after_sport
        after_receiver = kept(after_destination, after_destination), after_dport

        ingress = hook == hook_ingress
        client, backend = (after_sender, after_receiver) if ingress else (sender, receiver)
        if reply:
            client, backend = backend, client
        routed = (protocol, client, backend)
        connection = by_flow.get(routed)
        if connection is None:
            connection = by_flow[routed] = _Connection()
        connection.created = min(connection.created, created)
        connection.seen = max(connection.seen, seen)
        connection.reset |= bool(reset & certain)
        connection.service = connection.service or service
        connection.fins = max(connection.fins, fin_sent + fin_received)
        if ingress == bool(reply):
            connection.pending |= bool(pending)
            if not pending:
                connection.masquerade = receiver if reply else after_sender
            # Without a masquerade, netfilter masquerades it, from a port that had to be changed.
            if reply or masquerades:
                continue
        connection.client = after_receiver if reply else sender
        connection.frontend = after_sender if reply else receiver
        connection.answered |= bool(replied)
        connection.established |= bool(established)
        if not reply:
            connection.more = more.values(raw_key, raw)


def _row(
    routed: Routed,
    connection: _Connection,
    names: ServiceNames,
    now: int,
    more: Extras,
) -> Row:
    protocol, source, backend = routed
    # Without the entries around routing, which were evicted, the frontend is unknown.
    client = connection.client or source
    frontend = connection.frontend
    masquerade = connection.masquerade
    translation = []
    if frontend == backend:
        frontend = None
    else:
        translation.append("destination")
    if masquerade or connection.pending:
        translation.append("source")
    if client[1] != source[1]:
        translation.append(f"source-port={source[1]}")
    return (
        protocol_text(protocol),
        endpoint_text(*client),
        frontend_text(Frontend(*frontend, protocol)) if frontend else "",
        names[connection.service],
        endpoint_text(*backend),
        endpoint_text(*masquerade) if masquerade else "pending" if connection.pending else "",
        tuple(translation),
        connection.state(protocol),
        _seconds(now - connection.created),
        _seconds(now - connection.seen),
        *(connection.more or ("",) * len(more.columns)),
    )


def _seconds(nanoseconds: int) -> float:
    return max(0.0, round(nanoseconds / 1e9, 1))
