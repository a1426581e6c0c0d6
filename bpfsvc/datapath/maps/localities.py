"""The backends that an address of a service port keeps (bpf/maps/localities.h)."""

from __future__ import annotations

import struct
from collections.abc import Callable

from bpfsvc.datapath.maps.codec import EntryCodec
from bpfsvc.datapath.maps.layout import Layout, Record
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


def kept_of(
    layout: Layout, value: Callable[[str, bytes], bytes | None], entry: LocalityEntry
) -> tuple[int, ...]:
    """Return the ids of the counters of the backends that an address keeps.

    ``value`` returns the value of a key in a map.
    """
    of_map = layout.maps[LOCALITIES.name]
    key, _ = EntryCodec(LOCALITIES, of_map).encode(entry)
    raw = value(LOCALITIES.name, key)
    return kept_backends(raw, of_map.value) if raw else ()
