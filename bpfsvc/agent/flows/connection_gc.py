"""The connection GC: removes connections that are over.

Where a packet ends a connection, the program that sees it puts the connection into a queue
(``bpf/maps/closed_flows.h``), and another program, which is run here, removes what is due. So a
connection that is closed costs the agent nothing but its removal, in the kernel. What falls silent
is found by reading the table: rarely while there is room, because reading takes more time than
anything else here.

The kernel decides (``bpf/path/agent/gc.h``): between the reading of an entry and its deletion a
packet may have revived it, and only the kernel can look again.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial

from bpfsvc.agent.flows.expiry import NO_PAIRS, Expiry, PairCounts
from bpfsvc.agent.flows.load_recount import LoadRecount
from bpfsvc.agent.flows.open_connections import OpenConnections
from bpfsvc.agent.flows.port_use import PortUse
from bpfsvc.agent.flows.sweep_schedule import Signs, SweepSchedule
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import Pinned

_BLOCK = 4096
"""Entries that are read at once."""

_PAUSE = 0.002
"""Seconds between two blocks: a sweep must not delay a change of Services."""

_TICK_SECONDS = 2.0
"""How often closed connections are removed."""


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
        """``seconds`` lie between two sweeps at least, and not many more if connections come fast.

        ``report_nearly_full(text)`` is called when the table fills.
        """
        self._connections = pinned.map("connections")
        self._new_connections = pinned.map("new_connections")
        self._gc = GcProgram(pinned)
        self._expiry = Expiry(pinned.layout, lifetimes)
        self._any_seconds = min(lifetimes.half_open, lifetimes.udp, lifetimes.sctp)
        self._loads = LoadRecount(pinned)
        self._open = OpenConnections(pinned)
        self._pair_counts = pinned.map("half_open"), pinned.map("untranslated")
        self._tick = min(_TICK_SECONDS, seconds)
        self._schedule = SweepSchedule(seconds, self._connections.max_entries)
        self._report_nearly_full = report_nearly_full
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="connection GC", daemon=True)
        self._layout = pinned.layout
        self._settings = pinned.map("settings")
        self._port_range = pinned.layout.maps["settings"].value.pick("masquerade_ports")
        self.entries = 0
        """Entries of ``connections`` at the last sweep."""
        self.busiest_ports = 0
        """The most source ports in use from one address to one backend, at the last sweep."""
        self.open_connections: Mapping[int, int] = {}
        """TCP connections open at the last sweep, by the ids of counters of their backends."""

    def start(self) -> None:
        """Sweep from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def remove_closed(self) -> int:
        """Remove what is over of the connections whose end was seen; return how many pairs."""
        crowded, early_ports = self._is_above(_CROWDED), self._is_above(_ROOMY)
        return self._gc.remove_closed(crowded=crowded, early_ports=early_ports)

    @property
    def port_limit(self) -> int:
        """How many source ports there are from one address to one backend."""
        raw = self._settings.lookup(bytes(4))
        return int(self._port_range.unpack(raw)[0]) if raw else 0

    def _is_above(self, share: float) -> bool:
        """True if the table was fuller than that at the last sweep."""
        return self.entries > share * float(self._connections.max_entries)

    def sweep(self) -> int:
        """Read the tables once; return how many connections were over and are removed."""
        crowded, early_ports = self._is_above(_CROWDED), self._is_above(_ROOMY)
        remove = partial(self._gc.remove, crowded=crowded, early_ports=early_ports)
        recount = self._loads.begin()
        expiry = self._expiry.begin(crowded=crowded, early_ports=early_ports)
        removed = 0
        # The kernel evicts from this table only when it is full.
        for block in self._new_connections.blocks(_BLOCK):
            if recount:
                recount.add_new(block)
            removed += remove(expiry.of_block(block).keys)
            if self._stop.wait(_PAUSE):
                return removed
        entries, pairs, pairs_over = 0, NO_PAIRS, NO_PAIRS
        counted = self._counted_pairs()
        ports = PortUse(self._layout)
        self._open.begin()
        for block in self._connections.blocks(_BLOCK):
            entries += block.size
            if recount:
                recount.add(block)
            ports.add(block)
            expired = expiry.of_block(block)
            pairs, pairs_over = pairs.plus(expired.pairs), pairs_over.plus(expired.pairs_over)
            self._open.add(block, expired.open_tcp)
            removed += remove(expired.keys)
            if self._stop.wait(_PAUSE):
                return removed
        self._correct_counts(counted, pairs, pairs_over)
        if recount:
            recount.end()
        self._warn_if_crowded(entries)
        self.entries, self.busiest_ports = entries, ports.busiest()
        self.open_connections = self._open.end()
        # Nothing is known of what comes into an empty table.
        shortest = self._any_seconds if entries == 0 else expiry.shortest_seconds
        self._schedule.expect(0.0 if recount else shortest)
        return removed

    def _counted_pairs(self) -> PairCounts:
        """Return the programs' own counts of pairs."""
        return PairCounts(*map(_count, self._pair_counts))

    def _correct_counts(self, before: PairCounts, pairs: PairCounts, over: PairCounts) -> None:
        """Correct the programs' own counts of half-open and of untranslated connections.

        They count without locks, and may count one pair twice. ``before``: these counts when the
        sweep began; ``pairs``: what the sweep has read, of which it has removed ``over``. Pairs
        come and go while the table is read, so only the part of a difference is corrected that was
        there before the sweep, and is there after it.
        """
        after = self._counted_pairs()
        slack = self._connections.max_entries // _COUNT_SLACK
        each_kind = zip(self._pair_counts, before, after, pairs, over, strict=True)
        for of_kind, was, now, read, gone in each_kind:
            first, last = was - read, now - (read - gone)
            wrong = min(first, last, key=abs)
            if first * last > 0 and abs(wrong) > slack:
                right = (now - wrong).to_bytes(of_kind.value_size, sys.byteorder, signed=True)
                of_kind.update(bytes(4), right)

    def _warn_if_crowded(self, entries: int) -> None:
        """Warn once when the table fills up, while there is still time."""
        room = self._connections.max_entries
        if self.entries <= _CROWDED * room < entries:
            self._report_nearly_full(
                f"map connections holds {entries} of {room} entries;"
                " when it is full, new connections fail (enlarge it with --max-connections)"
            )

    def _run(self) -> None:
        self._schedule.begin(time.monotonic())
        while not self._stop.wait(self._tick):
            try:
                self._work()
            except (BpfsvcError, OSError) as error:
                _log.warning("the connection GC could not sweep: %s", error)

    def _work(self) -> None:
        """Remove what was closed, and sweep if it is time to."""
        closed, now = self.remove_closed(), time.monotonic()
        signs = Signs(self._is_above(_ROOMY), _count(self._pair_counts[0]), closed)
        if self._schedule.is_due(now, signs):
            self._schedule.begin(now, closed)
            self.sweep()


def _count(counter: Map) -> int:
    """Return a number of pairs that the programs count."""
    return int.from_bytes(counter.lookup(bytes(4)) or b"", sys.byteorder, signed=True)
