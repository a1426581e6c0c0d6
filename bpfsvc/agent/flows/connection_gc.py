"""The connection GC: removes connections that are over.

The tables are read here, and the kernel decides (``bpf/path/agent/gc.h``): between the reading of
an entry and its deletion a packet may have revived it, and only the kernel can look again.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

from bpfsvc.agent.flows.expiry import Expiry
from bpfsvc.agent.flows.load_recount import LoadRecount
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import Pinned

_PAUSE = 0.002
"""Seconds between two batches of reading: a sweep must not delay a change of Services."""

_CROWDED = 0.75
"""Above this share of the table, closed and half-open connections are collected early."""

_ROOMY = 0.5
"""Up to this share of the table, ports of closed connections are kept until peers forget them."""

_COUNT_SLACK = 256
"""A difference of one in so many entries of the table is not worth correcting."""

_log = logging.getLogger("bpfsvc")


class ConnectionGc:
    """Sweeps the connection tables of one node, in a thread of its own."""

    def __init__(
        self,
        pinned: Pinned,
        lifetimes: Lifetimes,
        seconds: float,
        report_nearly_full: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Sweep every ``seconds``; ``report_nearly_full(text)`` is called when the table fills."""
        self._connections = pinned.map("connections")
        self._new_connections = pinned.map("new_connections")
        self._gc = GcProgram(pinned)
        self._expiry = Expiry(pinned.layout, lifetimes)
        self._loads = LoadRecount(pinned)
        self._pair_counts = pinned.map("half_open"), pinned.map("untranslated")
        self._seconds = seconds
        self._report_nearly_full = report_nearly_full
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connection GC", daemon=True)
        self.entries = 0
        """Entries of ``connections`` at the last sweep."""

    def start(self) -> None:
        """Sweep from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def sweep(self) -> int:
        """Read the table once; return how many entries were over and are removed."""
        removed = entries = half_open = untranslated = 0
        room = self._connections.max_entries
        crowded, early_ports = self.entries > _CROWDED * room, self.entries > _ROOMY * room
        recount = self._loads.begin()
        if recount:
            for block in self._new_connections.blocks():
                recount.add_new(block)
        for block in self._connections.blocks():
            entries += block.size
            if recount:
                recount.add(block)
            expired = self._expiry.of_block(block, crowded=crowded, early_ports=early_ports)
            half_open += expired.half_open
            untranslated += expired.untranslated
            removed += self._gc.remove(expired.keys, crowded=crowded, early_ports=early_ports)
            if self._stop.wait(_PAUSE):
                return removed
        self._correct_counts(half_open, untranslated)
        if recount:
            recount.end()
        self._warn_if_crowded(entries)
        self.entries = entries
        return removed

    def _correct_counts(self, *counts: int) -> None:
        """Correct the programs' own counts of half-open and of untranslated connections.

        They count without locks, and may count one pair twice. Small differences are due to the
        time that the counting took.
        """
        for of_kind, counted in zip(self._pair_counts, counts, strict=True):
            kept = int.from_bytes(of_kind.lookup(bytes(4)) or b"", sys.byteorder, signed=True)
            if abs(kept - counted) > self._connections.max_entries // _COUNT_SLACK:
                of_kind.update(bytes(4), counted.to_bytes(of_kind.value_size, sys.byteorder))

    def _warn_if_crowded(self, entries: int) -> None:
        """Warn once when the table fills up, while there is still time."""
        room = self._connections.max_entries
        if self.entries <= _CROWDED * room < entries:
            self._report_nearly_full(
                f"map connections holds {entries} of {room} entries;"
                " when it is full, new connections fail (enlarge it with --max-connections)"
            )

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            try:
                self.sweep()
            except (BpfsvcError, OSError) as error:
                _log.warning("the connection GC could not sweep: %s", error)
