"""Records of Services: frontends, backends, and the traffic of each backend."""

from __future__ import annotations

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.fields import protocol_text, total
from bpfsvc.inspect.policies import PolicyTexts, action_text
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames
from bpfsvc.services.entries import CLIENTS, Frontend, frontend_text
from bpfsvc.services.plans.registry import BACKENDS, ENDPOINTS, FRONTENDS, SERVICES

TRAFFIC = ("connections", "packets", "bytes", "reply_packets", "reply_bytes")
"""The fields of a value of map ``backend_counters``."""


def services(reader: Reader) -> Records:
    """Return all service ports."""
    rows: list[Row] = [
        (
            *(port.namespace, port.name, port.port_name, number),
            *(protocol_text(port.protocol), f"IPv{port.family}", service),
        )
        for service, port, number in EntryReader(reader).read(SERVICES)
    ]
    columns = ("namespace", "name", "port_name", "port", "protocol", "family", "id")
    return Records("services", columns, sorted(rows))


def frontends(reader: Reader) -> Records:
    """Return what happens to each class of clients at each frontend.

    Classes that are treated alike share a row. ``action`` is forward, masquerade (forward with the
    node's address as source), reject or drop. ``affinity`` is how long a client stays with its
    backend, in seconds; a ``restricted`` frontend is for clients in its ``source_ranges`` only.
    ``scheduler`` chooses among several backends; ``on_removal`` says what happens to TCP
    connections when their backend leaves.
    """
    entries, texts, names = EntryReader(reader), PolicyTexts(reader.layout), ServiceNames(reader)
    backends = {
        (entry.service_id, entry.generation, entry.slot): endpoint_text(entry.address, entry.port)
        for entry in entries.read(BACKENDS)
    }
    rows: list[Row] = []
    for frontend, service, generation, policies in sorted(entries.read(FRONTENDS)):
        by_policy: dict[tuple[int, ...], list[str]] = {}
        for clients, policy in zip(CLIENTS, policies.by_class, strict=True):
            by_policy.setdefault(policy[:4], []).append(clients)
        for all_clients in by_policy.values():
            policy = getattr(policies, all_clients[0])
            slots = range(policy.first, policy.first + policy.size)
            rows.append(
                (
                    _frontend_text(frontend),
                    names[service],
                    tuple(all_clients),
                    action_text(policy),
                    tuple(backends.get((service, generation, slot), "missing") for slot in slots),
                    policies.affinity_seconds,
                    policies.restricted,
                    texts.scheduler(policies),
                    texts.removal(policies),
                )
            )
    columns = (
        *("frontend", "service", "clients", "action", "backends"),
        *("affinity", "restricted", "scheduler", "on_removal"),
    )
    return Records("frontends", columns, rows)


def _frontend_text(frontend: Frontend) -> str:
    """Return a frontend as text, ``10.96.0.10:*`` for all other ports of an address."""
    if frontend == Frontend.rest(frontend.address):
        return f"{unpack(frontend.address)}:*"
    return frontend_text(frontend)


def backends(reader: Reader) -> Records:
    """Return all slots of all generations, with the traffic of their backend.

    A ``local`` backend is on this node, and masqueraded when it is its own client.

    A backend in several slots has one count, shown at each slot. Packets and bytes are counted
    when they are rewritten; a connection of the node's own sockets has no packets.
    """
    names, traffic = ServiceNames(reader), _Traffic(reader)
    rows: list[Row] = [
        (
            *(names[entry.service_id], endpoint_text(entry.address, entry.port)),
            *(*traffic[entry.counters_id], entry.generation, entry.slot, entry.hairpin),
        )
        for entry in EntryReader(reader).read(BACKENDS)
    ]
    generation = 2 + len(TRAFFIC)
    rows.sort(key=lambda row: (row[0], *row[generation : generation + 2]))
    columns = ("service", "backend", *TRAFFIC, "generation", "slot", "local")
    return Records("backends", columns, rows)


class _Traffic:
    """Counts of backends, summed over the CPUs. Only the requested counters are read."""

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
    """Return all backends, each with the number of service ports that use it."""
    entries = EntryReader(reader).with_uses(ENDPOINTS)
    rows: list[Row] = [
        (f"{endpoint_text(address, port)}/{protocol_text(protocol)}", uses)
        for (address, port, protocol), uses in sorted(entries)
    ]
    return Records("endpoints", ("endpoint", "uses"), rows)
