"""Which entries of the connection table are over, by the time since their last packet.

A sweep may read a million entries, and hardly any of them is over. So nothing is done entry by
entry: one field of all entries of a block is one number, with a byte for each entry (*lanes*), and
an operation on such numbers handles a thousand entries. Only entries that seem to be over are then
looked at alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import compress
from socket import IPPROTO_TCP, IPPROTO_UDP
from typing import NamedTuple

from bpfsvc.agent.flows.byte_tables import equal, other_than
from bpfsvc.base.clock import NS_PER_SECOND
from bpfsvc.config.config import Lifetimes
from bpfsvc.datapath.bpf_map import Block
from bpfsvc.datapath.maps.layout import Layout

_ALONE_SECONDS = 15
"""How much longer an entry for replies is kept. It is removed with its partner; an older one has no
partner."""

_STATE = (
    *("seen", "reply", "established", "fin_sent", "fin_received"),
    *("reset", "held", "outside", "client_first"),
)
"""The fields of an entry that are read."""

_UNIT_BITS, _LONG_UNIT_BITS = 32, 40
"""Times are compared by two bytes of their nanoseconds, from this bit on: in units of 4 s, which
begin again after 78 hours; or of 18 minutes, which begin again after two years."""

_LONG_NS = 64 * 3600 * NS_PER_SECOND
"""Longer lifetimes are compared in long units."""

_RENEWED = 250
"""A difference of the upper bytes from here on, of 256, is of an entry that a packet has renewed
since the sweep began."""


class PairCounts(NamedTuple):
    """Numbers of pairs that the programs count, too."""

    half_open: int
    untranslated: int

    def plus(self, other: PairCounts) -> PairCounts:
        """Return the sums."""
        return PairCounts(self.half_open + other.half_open, self.untranslated + other.untranslated)


NO_PAIRS = PairCounts(0, 0)


class Expired(NamedTuple):
    """What a block has.

    ``keys``: of entries that seem to be over. ``pairs``: of all entries; ``pairs_over``: those of
    ``keys``. ``open_tcp``: a byte for each entry: 1 for requests of TCP connections that are open.
    """

    keys: list[bytes]
    pairs: PairCounts
    pairs_over: PairCounts
    open_tcp: bytes


class Expiry:
    """Reads the states of entries as the layout says."""

    def __init__(self, layout: Layout, lifetimes: Lifetimes) -> None:
        connections, constant = layout.maps["connections"], layout.constant
        self.at_key = connections.key.offsets("protocol", "hook")
        self.at = connections.value.offsets(*_STATE)
        self.untranslated = equal(constant("OUTSIDE_UNTRANSLATED"))
        self.egress = equal(constant("HOOK_EGRESS"))
        self.time_wait = constant("TIME_WAIT_SECONDS")
        self.early_seconds = constant("LINGER_SECONDS"), constant("UNANSWERED_SECONDS")
        self.lifetimes = lifetimes

    def begin(self, *, crowded: bool, early_ports: bool) -> ExpirySweep:
        """Begin a sweep: the ages of its entries are those of this moment.

        * ``crowded``: closed and half-open connections are over early.
        * ``early_ports``: ports of closed connections are not kept until peers forget them.
        """
        return ExpirySweep(self, time.monotonic_ns(), crowded=crowded, early_ports=early_ports)


class ExpirySweep:
    """Judges the blocks of one sweep."""

    def __init__(self, expiry: Expiry, now: int, *, crowded: bool, early_ports: bool) -> None:
        """``now`` is in ns of CLOCK_MONOTONIC."""
        self._expiry, self._now = expiry, now
        keep = expiry.lifetimes
        early = expiry.early_seconds if crowded else (keep.tcp_closed, keep.half_open)
        self._closed_seconds, self._opening_seconds = early
        self._keeps_ports = not (crowded or early_ports)
        self._limits: dict[int, _Limit] = {}
        self.shortest_seconds = float("inf")
        """The shortest time for which an entry that was read is kept, closed ones left out."""

    def of_block(self, block: Block) -> Expired:
        """Return the keys of entries that are over in a block, and numbers of pairs.

        A pair is counted by its request, which is removed with it.
        """
        lanes = _Lanes(self._expiry, block)
        over: list[int] = []
        for of_kind, seconds in self._kinds(lanes):
            if of_kind and not of_kind & lanes.closed:
                self.shortest_seconds = min(self.shortest_seconds, seconds)
            for of_direction, more in ((lanes.requests, 0), (lanes.replies, _ALONE_SECONDS)):
                if some := of_kind & of_direction:
                    over += self._over(lanes, some, seconds + more)
        half_open = lanes.field("held") & lanes.requests
        untranslated = lanes.field("outside", self._expiry.untranslated) & lanes.requests
        open_tcp = (lanes.open_tcp & lanes.requests).to_bytes(block.size, "little")
        return Expired(
            [block.key(index) for index in over],
            PairCounts(half_open.bit_count(), untranslated.bit_count()),
            PairCounts(lanes.count(half_open, over), lanes.count(untranslated, over)),
            open_tcp,
        )

    def _kinds(self, lanes: _Lanes) -> Iterator[tuple[int, int]]:
        """Yield the lanes of each kind of entries, and for how many seconds these are kept."""
        keep = self._expiry.lifetimes
        closed, waiting = lanes.closed, 0
        if closed and self._keeps_ports:
            # Their backend may remember the port that was chosen here.
            waiting = lanes.remembered & lanes.around_wire
        yield waiting, max(self._closed_seconds, self._expiry.time_wait)
        yield closed ^ waiting, self._closed_seconds
        established = lanes.field("established")
        opening = lanes.all & ~(closed | established)
        opening_udp = opening & lanes.protocol(IPPROTO_UDP)
        yield opening_udp, min(self._opening_seconds, keep.udp)
        yield opening ^ opening_udp, self._opening_seconds
        lasting = established & ~closed
        tcp, udp = (lanes.protocol(number) & lasting for number in (IPPROTO_TCP, IPPROTO_UDP))
        yield tcp ^ lanes.open_tcp, keep.tcp_half_closed
        yield lanes.open_tcp, keep.tcp_established
        yield udp, keep.udp
        yield lasting ^ tcp ^ udp, keep.sctp

    def _over(self, lanes: _Lanes, some: int, seconds: int) -> Iterator[int]:
        """Yield the indices of those of ``some`` that had no packet for so many seconds."""
        latest = self._now - seconds * NS_PER_SECOND
        if latest < 0:
            return
        limit = self._limits.get(seconds)
        if limit is None:
            limit = self._limits[seconds] = _Limit(self._now, latest)
        candidates = some & limit.older(lanes)
        if candidates:
            for index in lanes.indices(candidates):
                if lanes.seen[index] <= latest:
                    yield index


class _Lanes:
    """The fields of a block. Lanes of what is true or not have the bytes 1 and 0."""

    def __init__(self, expiry: Expiry, block: Block) -> None:
        self._expiry, self.block = expiry, block
        self._width = len(block.values) // block.size
        self._key_width = len(block.keys) // block.size
        self._columns: dict[int, bytes] = {}
        self.all = int.from_bytes(b"\1" * block.size, "little")
        self.replies = self.field("reply")
        self.requests = self.all ^ self.replies

    def field(self, name: str, table: bytes | None = None) -> int:
        """Return the lanes of a field of one byte; ``table`` says what its bytes become."""
        return self.byte(self._expiry.at[name], table)

    def byte(self, at: int, table: bytes | None = None) -> int:
        """Return the lanes of a byte of the values."""
        column = self._columns.get(at)
        if column is None:
            column = self._columns[at] = self.block.values[at :: self._width]
        return int.from_bytes(column.translate(table) if table else column, "little")

    def protocol(self, number: int) -> int:
        """Return the lanes of the entries of a protocol."""
        return int.from_bytes(self._protocols.translate(equal(number)), "little")

    @cached_property
    def _protocols(self) -> bytes:
        return self.block.keys[self._expiry.at_key["protocol"] :: self._key_width]

    @cached_property
    def reset(self) -> int:
        """Connections that were reset, or perhaps."""
        return self.field("reset", other_than(0))

    @cached_property
    def ended(self) -> int:
        """Connections of which both sides have sent a FIN."""
        return self.field("fin_sent") & self.field("fin_received")

    @cached_property
    def closed(self) -> int:
        """Connections that were closed or reset."""
        return self.ended | self.reset

    @cached_property
    def open_tcp(self) -> int:
        """TCP connections that are established, and of which no side has sent a FIN."""
        fins = self.field("fin_sent") | self.field("fin_received")
        return self.protocol(IPPROTO_TCP) & self.field("established") & ~(fins | self.reset)

    @property
    def remembered(self) -> int:
        """Connections that their backend may remember, as ``connection_is_remembered()`` says."""
        return self.ended & ~self.reset & ~self.field("client_first")

    @property
    def around_wire(self) -> int:
        """Entries of pairs around the wire, as ``connection_around_wire()`` says."""
        hooks = self.block.keys[self._expiry.at_key["hook"] :: self._key_width]
        return int.from_bytes(hooks.translate(self._expiry.egress), "little") ^ self.replies

    @cached_property
    def seen(self) -> memoryview:
        """The times of last packets, by the index of the entry."""
        first = self._expiry.at["seen"] // 8
        return memoryview(self.block.values).cast("Q")[first :: self._width // 8]

    def seen_byte(self, bits: int, table: bytes) -> int:
        """Return the lanes of that byte of the times that begins at a bit."""
        behind = bits // 8 if sys.byteorder == "little" else 7 - bits // 8
        return self.byte(self._expiry.at["seen"] + behind, table)

    def count(self, lanes: int, indices: Sequence[int]) -> int:
        """Return how many of the entries at these indices have lanes that are 1."""
        if not lanes or not indices:
            return 0
        column = lanes.to_bytes(self.block.size, "little")
        return sum(column[index] for index in indices)

    def indices(self, lanes: int) -> Iterator[int]:
        """Return the indices of the entries whose lanes are 1."""
        return compress(range(self.block.size), lanes.to_bytes(self.block.size, "little"))


class _Limit:
    """Finds entries whose last packet may have been at a time or before, in lanes."""

    def __init__(self, now: int, latest: int) -> None:
        bits = _LONG_UNIT_BITS if now - latest > _LONG_NS else _UNIT_BITS
        self._bits = bits
        upper, at = latest >> bits + 8, latest >> bits & 0xFF
        newest = now >> bits + 8
        ages = [(newest - byte) & 0xFF for byte in range(256)]
        self._before = bytes(newest - upper < age < _RENEWED for age in ages)
        self._same = equal(upper & 0xFF)
        self._not_after = bytes(byte <= at for byte in range(256))

    def older(self, lanes: _Lanes) -> int:
        """Return the lanes of these entries; some of them may be a unit younger."""
        upper, lower = self._bits + 8, self._bits
        return lanes.seen_byte(upper, self._before) | (
            lanes.seen_byte(upper, self._same) & lanes.seen_byte(lower, self._not_after)
        )
