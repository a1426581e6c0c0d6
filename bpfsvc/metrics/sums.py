"""Counters that the kernel keeps for each CPU, added up.

A node has up to some hundred CPUs, and ten thousand Services forty thousand rows of counters: one
by one that would be seconds. So a whole row is one large number here. Its fields lie side by side
in it, and are added all at once: 64 bits are more than any sum of them needs, so that nothing is
carried from one to the next.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable
from typing import Protocol


class Counters(Protocol):
    """A per-CPU array of the kernel; :class:`bpfsvc.datapath.bpf.Map` is one."""

    cpu_value_size: int
    value_size: int

    def lookup(self, key: bytes) -> bytes | None:
        """Read one row."""

    def blocks(self) -> Iterable[tuple[int, bytes, bytes]]:
        """Read all rows, in order."""


class Sums:
    """Reads the rows of one map. A row is given as one number, to be added to others."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._bits = 8 * counters.cpu_value_size
        self._all_bits = 8 * counters.value_size
        self._mask = (1 << self._bits) - 1
        self._fields = struct.Struct(f"={counters.cpu_value_size // 8}Q")

    def spread(self, added: int) -> tuple[int, ...]:
        """Give the fields of a row, or of several that were added."""
        return self._fields.unpack(added.to_bytes(self._fields.size, sys.byteorder))

    def one(self, row: int) -> int:
        """Read one row."""
        raw = self._counters.lookup(row.to_bytes(4, sys.byteorder))
        return self._fold(raw) if raw else 0

    def until(self, last: int, pause: Callable[[], None]) -> Rows:
        """Read the rows up to ``last``, calling ``pause()`` now and then."""
        step, size = self._counters.value_size, self._fields.size
        nothing, zero, fold, order = bytes(step), bytes(size), self._fold, sys.byteorder
        rows = Rows(size)
        for count, _, values in self._counters.blocks():
            for at in range(0, count * step, step):
                row = values[at : at + step]
                rows.run += zero if row == nothing else fold(row).to_bytes(size, order)
            pause()
            if len(rows.run) > last * size:
                break
        return rows

    def _fold(self, row: bytes) -> int:
        """Add up the CPUs: fold the row in halves until one CPU's part holds the sum of all."""
        added, shift = int.from_bytes(row, sys.byteorder), self._bits
        while shift < self._all_bits:
            added += added >> shift
            shift *= 2
        return added & self._mask


class Rows:
    """Rows as they were when they were read, end to end: as objects they would fill the heap."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.run = bytearray()

    def total(self, wanted: Iterable[int]) -> int:
        """Add up some of the rows; those that were not read count nothing."""
        run, size, order = self.run, self._size, sys.byteorder
        return sum([int.from_bytes(run[one * size : one * size + size], order) for one in wanted])
