"""Records of Services: frontends, backends, and the traffic of each backend."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from bpfsvc.base.address import endpoint_text, unpack
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.inspect.fields import protocol_text
from bpfsvc.inspect.policies import SAID, PolicyTexts, action_text
from bpfsvc.inspect.reader import Reader
from bpfsvc.inspect.records import Records, Row
from bpfsvc.inspect.service_names import ServiceNames, port_names
from bpfsvc.metrics.sums import Folding
from bpfsvc.services.entries import CLIENTS, Frontend, frontend_text
from bpfsvc.services.plans.registry import BACKENDS, ENDPOINTS, FRONTENDS

TRAFFIC = ("connections", "packets", "bytes", "reply_packets", "reply_bytes")
"""The fields of a value of map ``backend_counters``."""

_FEW = 4096
"""Up to this number, counters are looked up one by one; of more, all counters are read."""


def services(reader: Reader) -> Records:
    """Return all service ports."""
    columns = ("namespace", "name", "port_name", "port", "protocol", "family", "id")
    return Records("services", columns, sorted(port_names(EntryReader(reader))))


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
                    *texts.said(policies).values(),
                )
            )
    columns = (
        *("frontend", "service", "clients", "action", "backends"),
        *("affinity", "restricted", "scheduler", *SAID),
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
    names, entries = ServiceNames(reader), list(EntryReader(reader).read(BACKENDS))
    traffic = dict(backend_traffic(reader, {entry.counters_id for entry in entries}))
    nothing = (0,) * len(TRAFFIC)
    rows: list[Row] = [
        (
            *(names[entry.service_id], endpoint_text(entry.address, entry.port)),
            *traffic.get(entry.counters_id, nothing),
            *(entry.generation, entry.slot, entry.hairpin),
        )
        for entry in entries
    ]
    generation = 2 + len(TRAFFIC)
    rows.sort(key=lambda row: (row[0], *row[generation : generation + 2]))
    columns = ("service", "backend", *TRAFFIC, "generation", "slot", "local")
    return Records("backends", columns, rows)


def backend_traffic(
    reader: Reader, wanted: Collection[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the counters that are not 0, by their ids: the fields ``TRAFFIC``, over all CPUs."""
    layout = reader.layout.maps["backend_counters"]
    order = [layout.value.names.index(field) for field in TRAFFIC]
    folding, zeros = Folding(layout.value.size, layout.value.size), b""
    for index, raw in _raw_counters(reader, wanted):
        if len(raw) != len(zeros):
            folding, zeros = Folding(layout.value.size, len(raw)), bytes(len(raw))
        if raw == zeros:
            continue
        fields = folding.fields(folding.fold(raw))
        yield index, tuple([fields[field] for field in order])


def _raw_counters(reader: Reader, wanted: Collection[int]) -> Iterator[tuple[int, bytes]]:
    if len(wanted) <= _FEW:
        for index in wanted:
            raw = reader.value("backend_counters", index.to_bytes(4, sys.byteorder))
            if raw:
                yield index, raw
        return
    last = max(wanted)
    for key, raw in reader.entries("backend_counters"):  # an array: in the order of its indexes
        index = int.from_bytes(key, sys.byteorder)
        if index > last:
            return
        if index in wanted:
            yield index, raw


def endpoints(reader: Reader) -> Records:
    """Return all backends, each with the number of service ports that use it."""
    entries = EntryReader(reader).with_uses(ENDPOINTS)
    rows: list[Row] = [
        (f"{endpoint_text(address, port)}/{protocol_text(protocol)}", uses)
        for (address, port, protocol), uses in sorted(entries)
    ]
    return Records("endpoints", ("endpoint", "uses"), rows)
