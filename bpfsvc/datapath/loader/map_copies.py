"""Copy the content of maps from a build to a newer one, whose maps have other layouts."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection

from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.loader.shared_maps import CONNECTIONS, is_shared
from bpfsvc.datapath.maps.layout import Record
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.maps.registry import Role, map_info

_COPIED_TYPES = ("hash", "lru_hash", "lpm_trie", "array", "percpu_array", "percpu_hash")


def copy_maps(old: Pinned, new: Pinned) -> int:
    """Copy every map that is not shared, but connections; return the number of entries.

    Fields are matched by name; new ones start as zero.
    """
    return sum(
        _copy(name, old, new)
        for name in new.layout.maps
        if name in old.layout.maps
        and name not in CONNECTIONS
        and map_info(name).role is not Role.PER_BUILD
    )


def _copy(name: str, old: Pinned, new: Pinned) -> int:
    before, layout = old.layout.maps[name], new.layout.maps[name]
    if layout.type not in _COPIED_TYPES or is_shared(name, old.layout, new.layout):
        return 0
    source, target = old.map(name), new.map(name)
    keys, values = converter(before.key, layout.key), converter(before.value, layout.value)
    most = target.max_entries if layout.type.endswith("array") else None
    copied = 0
    for batch in source.batches():
        entries = [
            (keys(key), _per_cpu(values, value, source, target))
            for key, value in batch
            if most is None or int.from_bytes(key, sys.byteorder) < most
        ]
        target.update_many(entries)
        copied += len(entries)
    return copied


def converter(old: Record, new: Record, left_out: Collection[str] = ()) -> Callable[[bytes], bytes]:
    """Return the function that makes an entry of ``new`` from one of ``old``, field by field.

    Fields that ``old`` does not have, and those that are left out, become 0.
    """
    if old == new and not set(left_out) & set(old.names):
        return lambda data: data
    places = {name: (at, kind) for name, kind, at in old.places()}
    parts: list[tuple[int, int] | bytes] = []
    for name, kind, _ in new.places():
        at, was = places.get(name, (0, ""))
        if name and was == kind and name not in left_out:
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
