"""The backends that an address of a service port keeps (bpf/maps/localities.h)."""

from __future__ import annotations

import struct

from bpfsvc.datapath.maps.codec import EntryCodec
from bpfsvc.datapath.maps.layout import Record
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.services.scheduling.maps import LOCALITIES, LocalityEntry

KEPT = ("last", "members")
"""Fields of a value that name these backends."""

_MEMBER = struct.Struct("=II")


def kept_backends(raw: bytes, record: Record) -> tuple[int, ...]:
    """Return the ids of the counters of these backends, the last one that joined first."""
    last, members = record.pick(*KEPT).unpack(raw)
    if last:
        return (last,)
    joined = sorted((at, counters) for counters, at in _MEMBER.iter_unpack(members) if counters)
    return tuple(counters for _, counters in reversed(joined))


def kept_of(pinned: Pinned, entry: LocalityEntry) -> tuple[int, ...]:
    """Return the ids of the counters of the backends that an address keeps."""
    layout = pinned.layout.maps[LOCALITIES.name]
    key, _ = EntryCodec(LOCALITIES, layout).encode(entry)
    raw = pinned.map(LOCALITIES.name).lookup(key)
    return kept_backends(raw, layout.value) if raw else ()
