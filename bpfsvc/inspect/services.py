"""Records of Services: frontends, backends, and the traffic of each backend."""

from __future__ import annotations

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.inspect.fields import chooser, protocol_text, text, total
from bpfsvc.inspect.generic import extras
from bpfsvc.inspect.quarantine import WATCHED
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row, Value
from bpfsvc.inspect.removal import REMOVAL, removal_reader
from bpfsvc.inspect.schedulers import SCHEDULING, schedule_reader
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.inspect.spills import SPILLING
from bpfsvc.services.entries import CLIENTS, Frontend, frontend_text

ADDRESS_KEY = ("address", "port", "protocol")
SLOT = ("service", "generation", "slot")
BACKEND = ("address", "port", "hairpin", "counters")
TRAFFIC = ("connections", "packets", "bytes", "reply_packets", "reply_bytes")
NAME = ("namespace", "name", "port_name", "number", "protocol", "family")
POLICY = ("first", "size", "masquerade", "reject")
TRIALS = tuple(f"{who}.trials" for who in CLIENTS)
"""Not shown here: ``bpfsvc services`` says which backend it is."""
SPECIAL = ("affinity_seconds", "restricted")
ECHO = "echo"
"""Not shown here: echo_addresses has a view of its own."""
FRONTEND = (
    "service",
    "generation",
    *(f"{who}.{what}" for who in CLIENTS for what in POLICY),
    *SPECIAL,
)


def _frontend_text(frontend: Frontend) -> str:
    """Return a frontend as text, ``10.96.0.10:*`` for all other ports of an address."""
    if frontend == Frontend.rest(frontend.address):
        return f"{unpack(frontend.address)}:*"
    return frontend_text(frontend)


def services(reader: Reader) -> Records:
    """Return all service ports."""
    layout = reader.layout.maps["services"]
    key, value = chooser(layout.key, ("value",)), chooser(layout.value, NAME)
    more = extras(layout, ("value",), NAME)
    rows: list[Row] = []
    for raw_key, raw in reader.entries("services"):
        namespace, name, port_name, number, protocol, family = value(raw)
        row: Row = (
            text(namespace),
            text(name),
            text(port_name),
            number,
            protocol_text(protocol),
            f"IPv{family}",
            key(raw_key)[0],
        )
        rows.append(row + more.values(raw_key, raw))
    columns = ("namespace", "name", "port_name", "port", "protocol", "family", "id")
    return Records("services", columns + more.columns, sorted(rows))


def frontends(reader: Reader) -> Records:
    """Return what happens to each class of clients at each frontend.

    Classes that are treated alike share a row. ``action`` is forward, masquerade (forward with the
    node's address as source), reject or drop. ``affinity`` is how long a client stays with its
    backend, in seconds; a ``restricted`` frontend is for clients out of its ``source_ranges`` only.
    ``scheduler`` is how one of several backends is chosen, ``on_removal`` what becomes of TCP
    connections to one that leaves.
    """
    layout = reader.layout.maps["frontends"]
    key, value = chooser(layout.key, ADDRESS_KEY), chooser(layout.value, FRONTEND)
    unshown = (*TRIALS, *SPILLING, ECHO, WATCHED)
    more = extras(layout, ADDRESS_KEY, (*FRONTEND, *SCHEDULING, *REMOVAL, *unshown))
    schedule, removal = schedule_reader(reader.layout), removal_reader(reader.layout)
    service_names = ServiceNames(reader)
    places = _backend_places(reader)
    found = sorted((key(raw_key), raw_key, raw) for raw_key, raw in reader.entries("frontends"))
    rows: list[Row] = []
    for frontend, raw_key, raw in found:
        service, generation, *flat, affinity, restricted = value(raw)
        by_policy: dict[tuple[int, ...], list[str]] = {}
        for at, who in zip(range(0, len(flat), len(POLICY)), CLIENTS, strict=True):
            by_policy.setdefault(tuple(flat[at : at + len(POLICY)]), []).append(who)
        for (first, size, masquerade, reject), who_all in by_policy.items():
            slots = range(first, first + size)
            backends = tuple(places.get((service, generation, slot), "missing") for slot in slots)
            row: tuple[Value, ...] = (
                _frontend_text(Frontend._make(frontend)),
                service_names[service],
                tuple(who_all),
                action_text(size, masquerade, reject),
                backends,
                affinity,
                bool(restricted),
                schedule(raw).scheduler,
                removal(raw),
            )
            rows.append(row + more.values(raw_key, raw))
    columns = (
        *("frontend", "service", "clients", "action", "backends"),
        *("affinity", "restricted", "scheduler", "on_removal"),
    )
    return Records("frontends", columns + more.columns, rows)


def action_text(size: int, masquerade: int, reject: int) -> str:
    """Return what happens to clients: forward, masquerade, reject or drop."""
    if not size:
        return "reject" if reject else "drop"
    return "masquerade" if masquerade else "forward"


def _backend_places(reader: Reader) -> dict[tuple[int, ...], str]:
    layout = reader.layout.maps["backends"]
    key, value = chooser(layout.key, SLOT), chooser(layout.value, ("address", "port"))
    return {key(raw_key): endpoint_text(*value(raw)) for raw_key, raw in reader.entries("backends")}


def backends(reader: Reader) -> Records:
    """Return all slots of all generations, with the traffic of their backend.

    A ``local`` one is on this node, and masqueraded when it is its own client.

    A backend that is in several slots has one count, shown at each of them. Packets and bytes
    are those rewritten; a connection of the node's own sockets counts without packets.
    """
    layout = reader.layout.maps["backends"]
    key, value = chooser(layout.key, SLOT), chooser(layout.value, BACKEND)
    more = extras(layout, SLOT, BACKEND)
    service_names = ServiceNames(reader)
    traffic = _Traffic(reader)
    found = []
    for raw_key, raw in reader.entries("backends"):
        service, generation, slot = key(raw_key)
        found.append((service_names[service], generation, slot, raw_key, raw))
    rows: list[Row] = []
    for service_name, generation, slot, raw_key, raw in sorted(found):
        address, port, hairpin, counters = value(raw)
        row: Row = (
            *(service_name, endpoint_text(address, port), *traffic[counters], generation, slot),
            bool(hairpin),
        )
        rows.append(row + more.values(raw_key, raw))
    columns = ("service", "backend", *TRAFFIC, "generation", "slot", "local")
    return Records("backends", columns + more.columns, rows)


class _Traffic:
    """Counts of backends, summed over the CPUs. Only what is asked for is read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        layout = reader.layout.maps["backend_counters"]
        self._key = layout.key.codec
        self._sum = total(layout, TRAFFIC)
        self._nothing = [0] * len(TRAFFIC)
        self._known: dict[int, list[int]] = {}

    def __getitem__(self, counters: int) -> list[int]:
        if counters not in self._known:
            raw = self._reader.value("backend_counters", self._key.pack(counters))
            self._known[counters] = self._sum(raw) if raw else self._nothing
        return self._known[counters]


def endpoints(reader: Reader) -> Records:
    """Return all backends, and of how many service ports each is one."""
    layout = reader.layout.maps["endpoints"]
    key, value = chooser(layout.key, ADDRESS_KEY), chooser(layout.value, ("value",))
    more = extras(layout, ADDRESS_KEY, ("value",))
    found = sorted((key(raw_key), raw_key, raw) for raw_key, raw in reader.entries("endpoints"))
    rows: list[Row] = [
        (
            f"{endpoint_text(address, port)}/{protocol_text(protocol)}",
            value(raw)[0],
            *more.values(raw_key, raw),
        )
        for (address, port, protocol), raw_key, raw in found
    ]
    return Records("endpoints", ("endpoint", "uses", *more.columns), rows)
