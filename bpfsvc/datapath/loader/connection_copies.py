"""Copy connections from a build to a newer one, while programs of both handle packets."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Iterator

from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader.map_copies import converter
from bpfsvc.datapath.loader.shared_maps import CONNECTIONS, ESTABLISHED, NEW, is_shared
from bpfsvc.datapath.maps.layout import MapLayout, Record
from bpfsvc.datapath.maps.pins import Pinned

_FILTER = "port_filters"
_SEEN_NS = 3_000_000_000
"""More than ``seen`` may be older than the last packet: it is exact to about a second."""
_COARSE_NS = 10_000_000
"""The clock of ``seen`` is behind by a tick of the kernel, which has 100 in a second or more."""

_TIMES = ("created", "seen")
"""Fields that show which of two states is the later one: of two connections, or of one."""

_FINS = ("fin_sent", "fin_received")
_STAYS = ("replied", "established", *_FINS)
_NOTED = (*_STAYS, "reset", "client_first")
"""What a connection has come to, a byte each. Of two states of one time, one may have more."""

_CLOSING_NS = 500_000_000
"""The time in which the last packets of a closed connection come. A packet without FIN that comes
later is taken for one of a connection that was opened anew with the same entry."""

_Batch = list[tuple[bytes, bytes]]
"""Entries of a map: keys and values."""

_BATCH = 1024

_NUMBERS = frozenset({"acknowledged", "window"})
"""What the sender of a packet has said of the other direction."""

_HOOKS = ("HOOK_INGRESS", "HOOK_EGRESS")
_REVERSED = {
    "after.source": "destination",
    "after.destination": "source",
    "after.source_port": "destination_port",
    "after.destination_port": "source_port",
    "after.protocol": "protocol",
}
"""Of what an entry makes of a packet: what it is in the key of the entry for answers."""


def are_copied(old: Pinned, new: Pinned) -> bool:
    """True if connections have another layout in the newer build."""
    return not is_shared(NEW, old.layout, new.layout)


def copy_connections(old: Pinned, new: Pinned, since: int = 0, both: bool = False) -> int:
    """Copy entries of connections with packets after a time; return how many.

    ``since``: in ns of CLOCK_MONOTONIC. ``both``: the new programs have served, too. Then the later
    state of an entry stays.
    """
    _open_filter(old, new)
    copied = 0
    # In the order of the programs, so none is missed that they move meanwhile.
    for name in CONNECTIONS:
        before, layout = old.layout.maps.get(name), new.layout.maps[name]
        if before is None or is_shared(name, old.layout, new.layout):
            continue
        keys, value_of = converter(before.key, layout.key), _converter_of_values(before, layout)
        merger = _Merger(new, name, since) if both else None
        some = since and "seen" in before.value.names
        batches = _recent(old, name, since) if some else old.map(name).batches()
        for batch in _oldest_first(batches, before):
            entries = [(keys(key), value_of(key, value)) for key, value in batch]
            copied += len(entries)
            if merger:
                merger.merge(entries)
            else:
                new.map(name).update_many(entries)
                for key, _ in entries if since and name == ESTABLISHED else ():
                    new.map(NEW).delete(key)
    return copied


def _converter_of_values(old: MapLayout, new: MapLayout) -> Callable[[bytes, bytes], bytes]:
    """Return the function that makes the new value of an old entry.

    Of TCP without the numbers, which the old programs go on to change: with old ones its end would
    be taken for a forged one; without any, the next packet says them. Tags of SCTP do not change.
    """
    protocol = old.key.offsets("protocol")["protocol"]
    whole = converter(old.value, new.value)
    without = converter(old.value, new.value, _NUMBERS)
    return lambda key, value: (without if key[protocol] == socket.IPPROTO_TCP else whole)(value)


def _oldest_first(batches: Iterator[_Batch], layout: MapLayout) -> Iterator[_Batch]:
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
    for first in range(0, len(entries), _BATCH):
        yield entries[first : first + _BATCH]


def _recent(old: Pinned, name: str, since: int) -> Iterator[_Batch]:
    """Yield the entries of connections with packets after a time, in batches.

    A packet may change both entries of a connection, and the time of its own entry alone. Both
    entries of a pair come once, and together: the programs do not find them in two tables for long.
    """
    table, layout = old.map(name), old.layout.maps[name]
    seen, partner_of = layout.value.pick("seen"), _partner_of(old, name)
    done: set[bytes] = set()
    for batch in table.batches():
        recent: _Batch = []
        for key, value in batch:
            if key in done or seen.unpack(value)[0] < since - _SEEN_NS:
                continue
            recent.append((key, value))
            partner = partner_of(key, value)
            if state := table.lookup(partner):
                recent.append((partner, state))
                done.add(partner)
        yield recent


def _partner_of(old: Pinned, name: str) -> Callable[[bytes, bytes], bytes]:
    """Return the function that makes the key of an entry's partner (bpf/maps/connections.h)."""
    layout = old.layout.maps[name]
    to, hooks = layout.key.offsets(*layout.key.names), sum(map(old.layout.constant, _HOOKS))
    fields = [
        (to[_REVERSED[field]], at, struct.calcsize("=" + kind))
        for field, kind, at in layout.value.places()
        if field in _REVERSED
    ]

    def partner_of(key: bytes, value: bytes) -> bytes:
        partner = bytearray(key)
        for to_at, at, size in fields:
            partner[to_at : to_at + size] = value[at : at + size]
        partner[to["hook"]] = hooks - key[to["hook"]]
        return bytes(partner)

    return partner_of


class _Merger:
    """Makes the entries of one table of those that are there, and those that are copied.

    The old programs may have established what the new build has in its table of new connections;
    and the new programs what the old build has there.
    """

    def __init__(self, new: Pinned, name: str, since: int) -> None:
        record = new.layout.maps[name].value
        self._target, self._since, self._is_new = new.map(name), since, name == NEW
        self._other = new.map(ESTABLISHED if self._is_new else NEW)
        self._created = record.pick("created")
        self._of_two = _of_two(record)

    def merge(self, entries: _Batch) -> None:
        """Write what becomes of some entries."""
        for key, value in entries:
            there = self._target.lookup(key)
            other = None if there else self._other.lookup(key)
            if other and (self._is_new or self._created_at(value) < self._created_at(other)):
                # It has been moved, or the new programs have opened another one with its key.
                continue
            state = there or other
            if state:
                merged = self._of_two(state, value)
                if merged != there:
                    self._target.update(key, merged)
            elif self._created_at(value) >= self._since - _COARSE_NS:
                # Else it was copied before, and has been removed since.
                self._target.update(key, value, syscall.NOEXIST)
            if other:
                self._other.delete(key)

    def _created_at(self, value: bytes) -> int:
        created: int = self._created.unpack(value)[0]
        return created


def _of_two(record: Record) -> Callable[[bytes, bytes], bytes]:
    """Return the function that makes one state of two states of an entry: there, and copied.

    The later state stays, with what either build has noted that stays true. The packets of a
    connection may meet the old programs at one hook, and the new programs at another one: then each
    build notes one FIN.
    """
    times = record.pick(*_TIMES)
    places = record.offsets(*(name for name in (*_NOTED, "held") if name in record.names))
    held = places.pop("held", None)
    stays = [at for name, at in places.items() if name in _STAYS]
    fins = [at for name, at in places.items() if name in _FINS]

    def merged(there: bytes, copied: bytes) -> bytes:
        # At one time the state that is there stays: it has what only the new programs note.
        earlier, later = sorted((copied, there), key=times.unpack)
        (created, seen), (created_later, seen_later) = map(times.unpack, (earlier, later))
        if created != created_later:
            return later
        is_anew = all(earlier[at] for at in fins) and not any(later[at] for at in fins)
        if is_anew and seen_later - seen >= _CLOSING_NS:
            return later
        state = bytearray(later)
        for at in places.values() if seen == seen_later else stays:
            state[at] |= earlier[at]
        if held is not None and state[places["established"]]:
            state[held] = 0  # it is counted as half open no more
        return bytes(state)

    return merged


def remove_ended(old: Pinned, new: Pinned, until: int | None = None) -> None:
    """Remove connections that the old programs have removed after they were copied.

    As they were copied they would stay for a day. ``until``: when the new programs began to serve,
    in ns of CLOCK_MONOTONIC. A connection with a later packet may be one that only the new programs
    have, or that they have established. None: they have not begun.
    """
    both = [old.map(name) for name in CONNECTIONS if name in old.layout.maps]
    for name in CONNECTIONS:
        before, layout = old.layout.maps.get(name), new.layout.maps[name]
        if before is None or before.key != layout.key or is_shared(name, old.layout, new.layout):
            continue
        tables, is_quiet = [old.map(name)] if until is None else both, _is_quiet(new, name, until)
        is_unused = _is_unused(new, name, is_quiet)
        for batch in new.map(name).batches():
            gone = [
                (key, value)
                for key, value in batch
                if is_quiet(value) and all(table.lookup(key) is None for table in tables)
            ]
            # At once: the next connection from a port may have the same key.
            new.map(name).delete_many([key for key, value in gone if is_unused(key, value)])


def _is_quiet(new: Pinned, name: str, since: int | None) -> Callable[[bytes], bool]:
    """Return the function that tells whether an entry has had no packet after a time."""
    if since is None:
        return lambda _: True
    seen = new.layout.maps[name].value.pick("seen")
    return lambda state: bool(seen.unpack(state)[0] < since - _SEEN_NS)


def _is_unused(
    new: Pinned, name: str, is_quiet: Callable[[bytes], bool]
) -> Callable[[bytes, bytes], bool]:
    """Return the function that tells whether the partner of a quiet entry is quiet, too."""
    partner_of, tables = _partner_of(new, name), [new.map(table) for table in CONNECTIONS]

    def is_unused(key: bytes, value: bytes) -> bool:
        partner = partner_of(key, value)
        return all(is_quiet(table.lookup(partner) or value) for table in tables)

    return is_unused


def _open_filter(old: Pinned, new: Pinned) -> None:
    """Open the filter of the new programs if they find connections that are not noted there.

    Must be called before entries are written (``bpf/maps/port_filter.h`` has the rule).
    """
    if not _brings_unnoted(old, new):
        return
    port_filter = new.map(_FILTER)
    everything = b"\1" * port_filter.value_size
    # This costs lookups, but no connection is overlooked.
    for index in range(port_filter.max_entries):
        port_filter.update(index.to_bytes(port_filter.key_size, sys.byteorder), everything)


def _brings_unnoted(old: Pinned, new: Pinned) -> bool:
    """True if the new programs find connections that are not in their filter.

    A filter of unchanged layout is shared, and both builds write to it. Otherwise the old entries
    are not in the new filter, and old programs that write to a shared map add more of them.
    """
    layout = new.layout.maps.get(_FILTER)
    if layout is None or old.layout.maps.get(_FILTER) == layout:
        return False
    return any(
        is_shared(name, old.layout, new.layout) or next(old.map(name).batches(), None) is not None
        for name in CONNECTIONS
        if name in old.layout.maps
    )
