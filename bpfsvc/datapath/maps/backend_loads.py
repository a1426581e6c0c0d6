"""The number of connections to each backend that a scheduler compares (backend_loads.h)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.layout import Record

_ID = struct.Struct("=I")


class Load(NamedTuple):
    """Active and inactive connections. Either may be below 0 for a moment."""

    active: int = 0
    inactive: int = 0


class BackendLoad(NamedTuple):
    """All connections, and the share that sockets of the node carry."""

    connections: Load = Load()
    sockets: Load = Load()

    @property
    def total(self) -> Load:
        """The load that schedulers compare, not below 0."""
        return Load(max(self.connections.active, 0), max(self.connections.inactive, 0))

    @property
    def of_packets(self) -> Load:
        """Connections that have an entry in the table of connections."""
        (active, inactive), (sockets, datagrams) = self
        return Load(active - sockets, inactive - datagrams)


def read_load(raw: bytes, record: Record) -> BackendLoad:
    """Return a value of the map."""
    return BackendLoad(*map(_halves, record.pick(*BackendLoad._fields).unpack(raw)))


def read_loads(loads: Map, record: Record) -> dict[int, BackendLoad]:
    """Return the loads that are not 0, by the ids of counters."""
    by_id: dict[int, BackendLoad] = {}
    codec = record.pick(*BackendLoad._fields)
    for block in loads.blocks(4096):
        if block.values.count(0) == len(block.values):
            continue
        for at, numbers in enumerate(codec.iter_unpack(block.values)):
            if any(numbers):
                by_id[_ID.unpack(block.key(at))[0]] = BackendLoad(*map(_halves, numbers))
    return by_id


def _halves(number: int) -> Load:
    """Return both halves of ``active + inactive * 2^32``, a number of 64 bits."""
    active = _signed(number & 0xFFFFFFFF)
    return Load(active, _signed((number - active) >> 32 & 0xFFFFFFFF))


def _signed(number: int) -> int:
    return number - (number >> 31 << 32)
