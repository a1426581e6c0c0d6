"""Counters that the kernel keeps for each CPU, added up.

A node has up to some hundred CPUs, and ten thousand Services have forty thousand entries of
counters: to add each number alone would take seconds. So a whole entry is one large number here,
with its fields side by side, and all fields are added at once. No sum needs more than 64 bits, so
nothing is carried from one field to the next.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable
from typing import Protocol


class Counters(Protocol):
    """A per-CPU array of the kernel: a :class:`bpfsvc.datapath.syscall.Map`."""

    cpu_value_size: int
    value_size: int

    def lookup(self, key: bytes) -> bytes | None:
        """Return one entry."""

    def blocks(self) -> Iterable[tuple[int, bytes, bytes]]:
        """Yield all entries in order, in blocks: their number, keys and values."""


class Folding:
    """Adds up the CPUs' parts of an entry as it was read."""

    def __init__(self, cpu_value_size: int, value_size: int) -> None:
        """The sizes of the part of one CPU and of all parts, in bytes."""
        self._bits = 8 * cpu_value_size
        self._all_bits = 8 * value_size
        self._mask = (1 << self._bits) - 1
        self._struct = struct.Struct(f"={cpu_value_size // 8}Q")

    def fields(self, entry: int) -> tuple[int, ...]:
        """Return the fields of an entry, or of a sum of entries."""
        return self._struct.unpack(entry.to_bytes(self._struct.size, sys.byteorder))

    def fold(self, raw: bytes) -> int:
        """Return an entry of all CPUs, as it was read, as the sum over the CPUs.

        It is folded in halves until the part of one CPU holds the sum of all.
        """
        added, shift = int.from_bytes(raw, sys.byteorder), self._bits
        while shift < self._all_bits:
            added += added >> shift
            shift *= 2
        return added & self._mask


class Sums(Folding):
    """Reads the entries of one map, each as one number that can be added to others."""

    def __init__(self, counters: Counters) -> None:
        super().__init__(counters.cpu_value_size, counters.value_size)
        self._counters = counters

    def entry(self, index: int) -> int:
        """Return one entry."""
        raw = self._counters.lookup(index.to_bytes(4, sys.byteorder))
        return self.fold(raw) if raw else 0

    def entries(self, last: int, pause: Callable[[], None]) -> Entries:
        """Return the entries up to index ``last``, calling ``pause()`` after each block."""
        step, size = self._counters.value_size, self._struct.size
        nothing, zero, fold, order = bytes(step), bytes(size), self.fold, sys.byteorder
        entries = Entries(size)
        for count, _, values in self._counters.blocks():
            for at in range(0, count * step, step):
                entry = values[at : at + step]
                entries.data += zero if entry == nothing else fold(entry).to_bytes(size, order)
            pause()
            if len(entries.data) > last * size:
                break
        return entries


class Entries:
    """Entries as they were read, end to end: as objects they would fill the heap."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.data = bytearray()

    def total(self, indexes: Iterable[int]) -> int:
        """Return the sum of some entries; those that were not read count nothing."""
        data, size, order = self.data, self._size, sys.byteorder
        return sum([int.from_bytes(data[at * size : at * size + size], order) for at in indexes])
