"""Bring a build into the kernel: restore the one that is there, or make it and migrate the content.

Equal digests mean equal programs, so a restart of the same version makes nothing. A newer build
is made beside the old one: maps of unchanged layout are shared by both, the content of changed ones
is copied field by field, and the old programs stay attached until the new ones replace them.
"""

from __future__ import annotations

import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath import syscall
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.loader.builder import make_build
from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.loader import OWN_MAPS
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import CSource
from bpfsvc.datapath.maps.layout import Record
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot
from bpfsvc.datapath.maps.registry import Role, map_info

_MIGRATED_TYPES = ("hash", "lru_hash", "lpm_trie", "array", "percpu_array", "percpu_hash")
_CONNECTIONS = ("connections", "new_connections")

_NOT_COPIED = frozenset({"acknowledged", "window"})
"""Of a connection: the old programs note later numbers than those that are copied. With old numbers
its end would be taken for a forged one; without any, the next packet says them."""
_FILTER = "port_filters"
_SEEN_NS = 3_000_000_000
"""More than ``seen`` may be older than the last packet: it is exact to about a second."""
_COARSE_NS = 10_000_000
"""The clock of ``seen`` is behind by a tick of the kernel, which has 100 in a second or more."""

_REPLACED = ("ingress", "egress", "ingress_l3", "egress_l3")
"""Programs of the old build that the new one calls, in the order of ``bpf/path/tail_calls.h``."""

_TIMES = ("created", "seen")
"""Fields that show which of two states is the later one: of two connections, or of one."""

_FINS = ("fin_sent", "fin_received")
_STAYS = ("replied", "established", *_FINS)
_NOTED = (*_STAYS, "reset", "client_first")
"""What a connection has come to, a byte each. Of two states of one time, one may have more."""

_CLOSING_NS = 500_000_000
"""The time in which the last packets of a closed connection come. A packet without FIN that comes
later is taken for one of a connection that was opened anew with the same entry."""


class Installation:
    """A build that is loaded. ``fresh``: its programs are not attached yet.

    ``loading``: what still loads them; the maps can be used, and ``AGENT_PROGRAMS``.
    """

    def __init__(
        self,
        root: PinRoot,
        pinned: Pinned,
        previous: Pinned | None,
        fresh: bool,
        copied_at: int = 0,
        loading: Future[None] | None = None,
    ) -> None:
        self.root = root
        self.pinned = pinned
        self.fresh = fresh
        self._previous = previous
        self._copied_at = copied_at
        self._old_serve_alone = True
        self._old_alone_until = 0
        self._loading = loading

    def wait(self) -> None:
        """Return when all programs are loaded; raise :class:`BpfsvcError` if one cannot be."""
        if self._loading:
            self._loading.result()

    def on_failure(self, call: Callable[[Exception], None]) -> None:
        """Have ``call`` called, in any thread, with what :meth:`wait` raises, if it does."""

        def report(loading: Future[None]) -> None:
            error = loading.exception()
            if isinstance(error, Exception):
                call(error)

        if self._loading:
            self._loading.add_done_callback(report)

    def end_loading(self) -> None:
        """Return when nothing is being loaded any more, be it a success or not."""
        if self._loading:
            self._loading.exception()

    @property
    def replaces(self) -> bool:
        """True if programs of another build are attached, and serve until these are."""
        return self._previous is not None

    @property
    def settling(self) -> bool:
        """True if connections are being copied into a map of another layout."""
        return self._previous is not None and any(
            self._previous.layout.maps.get(name) != self.pinned.layout.maps[name]
            for name in _CONNECTIONS
        )

    def catch_up(self) -> None:
        """Copy connections that had packets since they were copied last.

        To be called just before the new programs are attached, and when they are: in between the
        old programs have the others. Of a large table this takes a small part of the time of the
        first copy.
        """
        if self._previous:
            since, self._copied_at = self._copied_at, time.monotonic_ns()
            if self._old_serve_alone:
                self._old_alone_until = self._copied_at
            merge = not self._old_serve_alone
            migrate(self._previous, self.pinned, _CONNECTIONS, since, merge)

    def call_replaced(self) -> Pinned:
        """Have the new programs call the old ones while they settle (``bpf/maps/settings.h``).

        Return the old build.
        Raises :class:`BpfsvcError` if they cannot, as if the setting of the JIT was another one.
        Then the new programs serve where they are attached.
        """
        assert self._previous
        self._old_serve_alone = False
        steps = self.pinned.map("steps")
        for number, name in self._places_of_replaced():
            steps.update(number, self._previous.program(name).to_bytes(4, sys.byteorder))
        self._old_serve_alone = True
        return self._previous

    def _places_of_replaced(self) -> list[tuple[bytes, str]]:
        first = self.pinned.map("steps").max_entries - len(_REPLACED)
        return [
            (number.to_bytes(4, sys.byteorder), name)
            for number, name in enumerate(_REPLACED, start=first)
        ]

    def take_over(self) -> None:
        """Make the connections those of the old build, whose programs have served alone until now.

        To be called when the new programs are attached everywhere, before they serve. It does
        nothing if they could not call the old ones: then they have served already.
        """
        if self._previous and self._old_serve_alone:
            # All of them: a packet changes both entries of a connection, and the time of one.
            self._copied_at = 0
            self.catch_up()
            _remove_ended(self._previous, self.pinned)
            self.catch_up()
            self._old_serve_alone = False

    def part(self, previous: Pinned) -> None:
        """Copy and remove connections for the last time, and call the old programs no more."""
        self.catch_up()
        _remove_ended(previous, self.pinned, self._old_alone_until - _COARSE_NS)
        for number, _ in self._places_of_replaced():
            self.pinned.map("steps").delete(number)

    def complete(self) -> None:
        """Close the old build and replace it by the new one, which is attached everywhere by now.

        Connections that the old programs noted while both ran are copied last, and those that they
        have removed are removed.
        """
        if not self.fresh:
            return
        if self._previous:
            self.part(self._previous)
            self._previous.close()
            self._previous = None
        self.root.promote_next()
        self.pinned.directory = self.root.current
        self.fresh = False


def install(
    root: PinRoot,
    source: CSource,
    log: Callable[[str], None],
    cache: Path | None = None,
    shipped: Path | None = None,
) -> Installation:
    """Load the build of ``source`` at ``root``, or restore it if it is there already.

    ``cache``: a directory for programs that are compiled here; ``shipped``: one of those that came
    with bpfsvc.
    """
    installation = begin_install(root, source, log, cache, shipped)
    installation.wait()
    return installation


def begin_install(
    root: PinRoot,
    source: CSource,
    log: Callable[[str], None],
    cache: Path | None = None,
    shipped: Path | None = None,
    unwanted: Callable[[], bool] = lambda: False,
) -> Installation:
    """Do the same, but where there was no build before, return as soon as the maps can be used.

    Most of the time is the verifier's, and Services can be written meanwhile. Where a build is
    replaced that is in force, nothing is written before it is certain that the new one loads.
    ``unwanted()``: see :func:`compile_source`.
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
    digest = source.code_digest
    cached = BytecodeCache(cache, digest, log) if cache else None
    carried = ShippedPrograms(shipped, digest) if shipped else None
    usable = threading.Event()
    loading = _in_thread(
        make_build, root, source, log, previous, cached, carried, usable.set, unwanted
    )
    loading.add_done_callback(lambda _: usable.set())
    usable.wait()
    if previous or loading.done():
        loading.result()
    pinned = Pinned(root.next)
    now = time.monotonic_ns()
    if previous:
        copied = migrate(previous, pinned)
        log(f"replacing an older build; {copied} entries copied into changed maps")
    return Installation(root, pinned, previous, fresh=True, copied_at=now, loading=loading)


def _in_thread(function: Callable[..., None], *args: object) -> Future[None]:
    """Call a function in a thread of its own, which ends with it."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(function, *args)
    finally:
        pool.shutdown(wait=False)


def migrate(
    old: Pinned, new: Pinned, only: tuple[str, ...] = (), since: int = 0, merge: bool = True
) -> int:
    """Copy the content of every map that is not shared; return the number of entries.

    Fields are matched by name; new ones start as zero.

    * ``since``: only connections with a packet after this time, in ns of CLOCK_MONOTONIC.
    * ``merge``: the new programs have served, too. A connection that is in the new map stays,
      unless the old one is of a later packet.
    """
    if _brings_unnoted(old, new):
        _open_filter(new.map(_FILTER))
    copied = 0
    for name, layout in new.layout.maps.items():
        before = old.layout.maps.get(name)
        if before is None or (before == layout and name not in OWN_MAPS):
            continue
        if layout.type not in _MIGRATED_TYPES or map_info(name).role is Role.PER_BUILD:
            continue
        if only and name not in only:
            continue
        copied += _copy(name, old, new, since, merge)
    return copied


def _remove_ended(old: Pinned, new: Pinned, until: int | None = None) -> None:
    """Remove connections that the old programs have removed after they were copied.

    No packet of theirs comes any more, and as they were copied they would stay for a day.
    ``until``: when the new programs began to serve, in ns of CLOCK_MONOTONIC. A connection with a
    later packet may be one that only the new programs have, and they may have moved it from one
    table to the other one. None: they have not begun.
    """
    both = [old.map(name) for name in _CONNECTIONS if name in old.layout.maps]
    for name in _CONNECTIONS:
        before, layout = old.layout.maps.get(name), new.layout.maps[name]
        if before is None or before == layout or before.key != layout.key:
            continue
        seen, tables = layout.value.pick("seen"), [old.map(name)] if until is None else both
        quiet = (
            key
            for batch in new.map(name).batches()
            for key, value in batch
            if until is None or seen.unpack(value)[0] < until
        )
        ended = [key for key in quiet if all(table.lookup(key) is None for table in tables)]
        new.map(name).delete_many(ended)


def _brings_unnoted(old: Pinned, new: Pinned) -> bool:
    """True if the new programs find connections that are not in their filter.

    A filter of unchanged layout is shared, and both builds write to it. Otherwise the old entries
    are not in the new filter, and old programs that write to a shared map add more of them.
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


def _open_filter(port_filter: Map) -> None:
    """Set every byte of the filter: this costs lookups, but no connection is overlooked.

    Must be called before the entries are written (``bpf/maps/port_filter.h`` has the rule).
    """
    everything = b"\1" * port_filter.value_size
    for index in range(port_filter.max_entries):
        port_filter.update(index.to_bytes(port_filter.key_size, sys.byteorder), everything)


def _copy(name: str, old: Pinned, new: Pinned, since: int, both: bool) -> int:
    """Copy one map; ``both``: both builds have written connections."""
    source, target = old.map(name), new.map(name)
    before, layout = old.layout.maps[name], new.layout.maps[name]
    keys, values = converter(before.key, layout.key), converter(before.value, layout.value)
    fixed = layout.type.endswith("array")
    merge = _merger(layout.value) if both and set(_TIMES) <= set(layout.value.names) else None
    created = layout.value.pick("created") if merge else None
    flags = syscall.ANY if fixed or not both else syscall.NOEXIST
    seen = before.value.pick("seen") if since and "seen" in before.value.names else None
    copied = 0
    for batch in source.batches():
        entries = (
            (keys(key), _per_cpu(values, value, source, target))
            for key, value in batch
            if seen is None or seen.unpack(value)[0] >= since - _SEEN_NS
        )
        for key, value in entries:
            if fixed and int.from_bytes(key, sys.byteorder) >= target.max_entries:
                continue
            if merge and (there := target.lookup(key)):
                merged = merge(there, value)
                copied += merged != there and target.update(key, merged)
            elif not created or created.unpack(value)[0] >= since - _COARSE_NS:
                # Else it was copied before, and the new programs have removed or moved it.
                copied += target.update(key, value, flags)
    return copied


def _merger(record: Record) -> Callable[[bytes, bytes], bytes]:
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


def converter(old: Record, new: Record) -> Callable[[bytes], bytes]:
    """Return the function that makes an entry of ``new`` from one of ``old``, field by field.

    Fields that ``old`` does not have, and those that cannot be copied, become 0.
    """
    if old == new:
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
