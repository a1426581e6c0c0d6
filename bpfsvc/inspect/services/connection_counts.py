"""How many connections each backend has, counted as ip_vs counts them.

ip_vs calls a connection active while TCP opens it or has it open; one that is closing or closed is
inactive, and so is every UDP flow. SCTP is active once it is established.

A connection is counted by one of its entries: the entry at ingress by which the client's packets
find their backend. A masquerade that outlives its connection for a minute is no connection.
"""

from __future__ import annotations

import sys
from socket import IPPROTO_SCTP, IPPROTO_TCP

from bpfsvc.datapath.maps.layout import Record
from bpfsvc.inspect.fields import Fields
from bpfsvc.inspect.reader import Reader
from bpfsvc.services.entries import Place

KEY = ("hook", "protocol")
VALUE = (
    "after.destination",
    "after.destination_port",
    "service",
    "reply",
    "established",
    "fin_sent",
    "fin_received",
    "reset",
)
"""The fields of a value that are read."""

_ID, _ADDRESS, _PORT = 4, 16, 2
"""Sizes of a service id, an address and a port."""

Counts = tuple[int, int]
"""Active connections, and inactive ones."""


def connection_counts(reader: Reader) -> dict[int, dict[Place, Counts]]:
    """Return service id -> backend -> its connections; backends without any are left out.

    A busy node has hundreds of thousands of entries, so they are taken apart by offsets.
    """
    counts: dict[bytes, list[int]] = {}
    moving: set[bytes] = set()
    # An entry that moves from the first map to the second is in both for an instant.
    for name in ("new_connections", "connections"):
        if name in reader.layout.maps:
            _count(reader, name, counts, moving)
    by_service: dict[int, dict[Place, Counts]] = {}
    for packed, (active, inactive) in counts.items():
        service = int.from_bytes(packed[:_ID], sys.byteorder)
        port = int.from_bytes(packed[_ID + _ADDRESS :], "big")
        backend = packed[_ID : _ID + _ADDRESS], port
        by_service.setdefault(service, {})[backend] = active, inactive
    return by_service


def _count(reader: Reader, name: str, counts: dict[bytes, list[int]], moving: set[bytes]) -> None:
    layout = reader.layout.maps[name]
    hook, protocol = _offsets(layout.key, KEY)
    address, port, service, reply, established, *ends = _offsets(layout.value, VALUE)
    fin_sent, fin_received, reset = ends
    ingress = reader.layout.constant("HOOK_INGRESS")
    certain = reader.layout.constants.get("RESET_CERTAIN", 1)  # earlier builds have no other
    none, first = bytes(_ID), name == "new_connections"
    for key, value in reader.entries(name):
        if key[hook] != ingress or value[reply]:
            continue
        of = value[service : service + _ID]
        if of == none or (not first and key in moving):
            continue  # a direct flow with a changed port; or counted already
        if first:
            moving.add(key)
        if value[fin_sent] or value[fin_received] or value[reset] == certain:
            inactive = True
        elif key[protocol] == IPPROTO_TCP:
            inactive = False
        else:
            inactive = key[protocol] != IPPROTO_SCTP or not value[established]
        packed = of + value[address : address + _ADDRESS] + value[port : port + _PORT]
        counts.setdefault(packed, [0, 0])[inactive] += 1


def _offsets(record: Record, wanted: tuple[str, ...]) -> Fields:
    """Return where the fields begin."""
    places = {name: at for name, _, at in record.places()}
    return tuple(places[name] for name in wanted)
