"""How many connections each backend has, counted as ip_vs counts them.

A TCP connection is active while it is open; one that is closing or closed is inactive, and so is
every UDP flow. SCTP is active once it is established. An attempt to open a TCP connection is
half-open: ip_vs calls it active, and so does a backend that never answers look busy.

A connection is counted by one of its entries: the entry at ingress by which the client's packets
find their backend. A masquerade that outlives its connection for a minute is no connection.
"""

from __future__ import annotations

import sys
from socket import IPPROTO_SCTP, IPPROTO_TCP
from typing import NamedTuple

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

_ACTIVE, _INACTIVE, _HALF_OPEN = range(3)
"""Places in :class:`Counts`."""

_ID, _ADDRESS, _PORT = 4, 16, 2
"""Sizes of a service id, an address and a port."""


class Counts(NamedTuple):
    """Connections of a backend. ``half_open``: TCP that the client has not established yet."""

    active: int = 0
    inactive: int = 0
    half_open: int = 0


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
    for packed, numbers in counts.items():
        service = int.from_bytes(packed[:_ID], sys.byteorder)
        port = int.from_bytes(packed[_ID + _ADDRESS :], "big")
        backend = packed[_ID : _ID + _ADDRESS], port
        by_service.setdefault(service, {})[backend] = Counts(*numbers)
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
        if value[fin_sent] or value[fin_received] or value[reset] & certain:
            kind = _INACTIVE
        elif key[protocol] == IPPROTO_TCP:
            kind = _ACTIVE if value[established] else _HALF_OPEN
        else:
            is_active = key[protocol] == IPPROTO_SCTP and value[established]
            kind = _ACTIVE if is_active else _INACTIVE
        packed = of + value[address : address + _ADDRESS] + value[port : port + _PORT]
        counts.setdefault(packed, [0, 0, 0])[kind] += 1


def _offsets(record: Record, wanted: tuple[str, ...]) -> Fields:
    """Return where the fields begin."""
    places = {name: at for name, _, at in record.places()}
    return tuple(places[name] for name in wanted)
