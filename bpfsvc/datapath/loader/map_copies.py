"""Copy the content of maps from a build to a newer one, whose maps have other layouts."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterator

from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.loader.shared_maps import is_shared
from bpfsvc.datapath.maps.layout import MapLayout, Record
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.registry import Role, map_info

Batch = list[tuple[bytes, bytes]]
"""Entries of a map: keys and values."""

_BATCH = 1024

_COPIED_TYPES = ("hash", "lru_hash", "lpm_trie", "array", "percpu_array", "percpu_hash")

_NOT_COPIED = frozenset({"acknowledged", "window"})
"""Of a connection: the old programs note later numbers than those that are copied. With old numbers
its end would be taken for a forged one; without any, the next packet says them."""


def copy_maps(old: Pinned, new: Pinned) -> int:
    """Copy every map that is not shared; return the number of entries.

    Fields are matched by name; new ones start as zero.
    """
    return sum(
        _copy(name, old, new)
        for name in new.layout.maps
        if name in old.layout.maps and map_info(name).role is not Role.PER_BUILD
    )


def _copy(name: str, old: Pinned, new: Pinned) -> int:
    before, layout = old.layout.maps[name], new.layout.maps[name]
    if layout.type not in _COPIED_TYPES or is_shared(name, old.layout, new.layout):
        return 0
    source, target = old.map(name), new.map(name)
    keys, values = converter(before.key, layout.key), converter(before.value, layout.value)
    most = target.max_entries if layout.type.endswith("array") else None
    copied = 0
    for batch in oldest_first(source.batches(), before):
        entries = [
            (keys(key), _per_cpu(values, value, source, target))
            for key, value in batch
            if most is None or int.from_bytes(key, sys.byteorder) < most
        ]
        target.update_many(entries)
        copied += len(entries)
    return copied


def oldest_first(batches: Iterator[Batch], layout: MapLayout) -> Iterator[Batch]:
    """Yield batches of entries; those of connections that the kernel may evict, in their order.

    The kernel evicts first what was written first. In the order in which a map is read it would
    evict recent connections, and of a connection one entry without the other one.
    """
    if layout.type != "lru_hash" or "created" not in layout.value.names:
        yield from batches
        return
    created = layout.value.pick("created")
    entries = [entry for batch in batches for entry in batch]
    entries.sort(key=lambda entry: created.unpack(entry[1]))
    for at in range(0, len(entries), _BATCH):
        yield entries[at : at + _BATCH]


def converter(old: Record, new: Record) -> Callable[[bytes], bytes]:
    """Return the function that makes an entry of ``new`` from one of ``old``, field by field.

    Fields that ``old`` does not have, and those that cannot be copied, become 0.
    """
    if old == new and _NOT_COPIED.isdisjoint(old.names):
        return lambda data: data
    places = {name: (at, kind) for name, kind, at in old.places()}
    parts: list[tuple[int, int] | bytes] = []
    for name, kind, _ in new.places():
        at, was = places.get(name, (0, ""))
        if name and was == kind and name not in _NOT_COPIED:
            parts.append((at, at + struct.calcsize("=" + kind)))
        else:
            parts.append(bytes(struct.calcsize("=" + kind)))
    return lambda data: b"".join(
        part if isinstance(part, bytes) else data[part[0] : part[1]] for part in parts
    )


def _per_cpu(convert: Callable[[bytes], bytes], value: bytes, source: Map, target: Map) -> bytes:
    if not source.per_cpu:
        return convert(value)
    size = source.cpu_value_size
    parts = (convert(value[at : at + size]) for at in range(0, len(value), size))
    return b"".join(part.ljust(target.cpu_value_size, b"\0") for part in parts)
