"""Bringing a build into the kernel: adopt what is there, or make it and carry its content over.

Equal digests mean equal programs, so a restart of the same version makes nothing. A newer build
is made beside the old one: maps of unchanged layout are shared by both, the content of changed ones
is copied field by field, and the old programs stay attached until the new ones replace them.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

from bpfsvc.datapath import bpf
from bpfsvc.datapath.building import make_build
from bpfsvc.datapath.cache import Cache
from bpfsvc.datapath.layout import MapLayout, Record
from bpfsvc.datapath.pins import NotLoaded, Pinned, PinRoot
from bpfsvc.datapath.source import Source
from bpfsvc.errors import KernelError

_MIGRATED_TYPES = ("hash", "lru_hash", "lpm_trie", "array", "percpu_array")
_CONNECTIONS = ("connections", "new_connections")
_FILTER = "port_filters"
_TIMES = ("created", "seen")
"""By which two states of one connection are told apart."""

_REBUILT = ("layout", "steps", "packets", "direct_flows", "destinations", _FILTER)
"""Maps whose content belongs to one build."""


class Installation:
    """A build that is loaded. ``fresh`` tells whether its programs are not attached yet."""

    def __init__(self, root: PinRoot, pinned: Pinned, previous: Pinned | None, fresh: bool) -> None:
        self.root = root
        self.pinned = pinned
        self.fresh = fresh
        self._previous = previous

    @property
    def settling(self) -> bool:
        """Whether connections are to be carried over into a map of another layout."""
        return self._previous is not None and any(
            self._previous.layout.maps.get(name) != self.pinned.layout.maps[name]
            for name in _CONNECTIONS
        )

    def complete(self) -> None:
        """Call when the new programs are attached everywhere: the old build is let go.

        Connections that the old programs noted while both ran are carried over last.
        """
        if not self.fresh:
            return
        if self._previous:
            migrate(self._previous, self.pinned, only=_CONNECTIONS)
            self._previous.close()
            self._previous = None
        self.root.promote_next()
        self.pinned.directory = self.root.current
        self.fresh = False


def install(
    root: PinRoot, source: Source, log: Callable[[str], None], cache: Path | None = None
) -> Installation:
    """Load the build of ``source`` at ``root``, or adopt it if it is there already.

    ``cache``: a directory where what has been compiled is kept, and looked for.
    """
    root.create()
    root.discard_next()
    try:
        previous: Pinned | None = Pinned(root.current)
    except NotLoaded:
        previous = None
    except KernelError as error:
        # Written by a version that this one cannot read: traffic goes on until replaced.
        log(f"starting over: {error}")
        previous = None
    if previous and previous.layout.digest == source.digest:
        return Installation(root, previous, None, fresh=False)
    make_build(root, source, previous, Cache(cache, source.digest, log) if cache else None)
    pinned = Pinned(root.next)
    if previous:
        copied = migrate(previous, pinned)
        log(f"replacing an older build; {copied} rows carried over into changed maps")
    return Installation(root, pinned, previous, fresh=True)


def migrate(old: Pinned, new: Pinned, only: tuple[str, ...] = ()) -> int:
    """Copy the content of every map whose layout changed; return the number of rows.

    Fields are matched by name; new ones start as zero. A row that is in the new map already stays,
    unless the old one tells of a later packet.
    """
    if _brings_unnoted(old, new):
        _open_filter(new.map(_FILTER))
    copied = 0
    for name, layout in new.layout.maps.items():
        before = old.layout.maps.get(name)
        if before is None or before == layout or layout.type not in _MIGRATED_TYPES:
            continue
        if name in _REBUILT or (only and name not in only):
            continue
        copied += _copy(old.map(name), before, new.map(name), layout)
    return copied


def _brings_unnoted(old: Pinned, new: Pinned) -> bool:
    """Whether the new programs find connections that are not in their filter.

    A filter of unchanged layout is shared, and both builds note in it. Otherwise the old entries
    are in no filter of ours, and old programs that write into a shared map add to them.
    """
    layout = new.layout.maps.get(_FILTER)
    if layout is None or old.layout.maps.get(_FILTER) == layout:
        return False
    return any(
        old.layout.maps[name] == new.layout.maps.get(name)
        or next(old.map(name).batches(), None) is not None
        for name in _CONNECTIONS
        if name in old.layout.maps
    )


def _open_filter(found: bpf.Map) -> None:
    """Let the filter say yes to everything: it then costs lookups, but overlooks no connection.

    To be called before the entries are written, as ``bpf/filter.h`` demands of the programs.
    """
    everything = b"\1" * found.value_size
    for index in range(found.max_entries):
        found.update(index.to_bytes(found.key_size, sys.byteorder), everything)


def _copy(source: bpf.Map, before: MapLayout, target: bpf.Map, layout: MapLayout) -> int:
    keys, values = converter(before.key, layout.key), converter(before.value, layout.value)
    fixed = layout.type.endswith("array")
    times = layout.value.pick(*_TIMES) if set(_TIMES) <= set(layout.value.names) else None
    copied = 0
    for batch in source.batches():
        rows = ((keys(key), _per_cpu(values, value, source, target)) for key, value in batch)
        for key, value in rows:
            if fixed and int.from_bytes(key, sys.byteorder) >= target.max_entries:
                continue
            written = target.update(key, value, bpf.ANY if fixed else bpf.NOEXIST)
            if not written and times:
                there = target.lookup(key)
                if there is None or times.unpack(there) < times.unpack(value):
                    written = target.update(key, value)
            copied += written
    return copied


def converter(old: Record, new: Record) -> Callable[[bytes], bytes]:
    """Give the function that makes a row of ``new`` from one of ``old``, field by field."""
    if old == new:
        return lambda data: data
    places = {name: (at, kind) for name, kind, at in old.places()}
    parts: list[tuple[int, int] | bytes] = []
    for name, kind, _ in new.places():
        at, was = places.get(name, (0, ""))
        if name and was == kind:
            parts.append((at, at + struct.calcsize("=" + kind)))
        else:
            parts.append(bytes(struct.calcsize("=" + kind)))
    return lambda data: b"".join(
        part if isinstance(part, bytes) else data[part[0] : part[1]] for part in parts
    )


def _per_cpu(
    convert: Callable[[bytes], bytes], value: bytes, source: bpf.Map, target: bpf.Map
) -> bytes:
    if not source.per_cpu:
        return convert(value)
    size = source.cpu_value_size
    parts = (convert(value[at : at + size]) for at in range(0, len(value), size))
    return b"".join(part.ljust(target.cpu_value_size, b"\0") for part in parts)
