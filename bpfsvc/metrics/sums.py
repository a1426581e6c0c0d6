"""Counters that the kernel keeps for each CPU, added up.

A node has up to some hundred CPUs, and ten thousand Services have forty thousand entries of
counters: to add each number alone would take seconds. So a whole entry is one large number here,
with its fields side by side, and all fields are added at once. No sum needs more than 64 bits, so
nothing is carried from one field to the next.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Protocol

_ORDER = sys.byteorder

_FOLDED_AT_ONCE = 1 << 16
"""Bytes: less than a millisecond of work, which no other thread interrupts."""


class Counters(Protocol):
    """A per-CPU array of the kernel: a :class:`bpfsvc.datapath.bpf_map.Map`."""

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
        self._cpus = value_size // cpu_value_size
        self._mask = (1 << self._bits) - 1
        self._struct = struct.Struct(f"={cpu_value_size // 8}Q")
        self._halves = int.from_bytes(self._struct.pack(*[1 << 63] * (cpu_value_size // 8)), _ORDER)

    def fields(self, entry: int) -> tuple[int, ...]:
        """Return the fields of an entry, or of a sum of entries."""
        return self._struct.unpack(entry.to_bytes(self._struct.size, _ORDER))

    def number(self, fields: Iterable[int]) -> int:
        """Return an entry with these fields."""
        return int.from_bytes(self._struct.pack(*fields), _ORDER)

    def not_negative(self, difference: int) -> tuple[int, ...]:
        """Return the fields of a difference of entries, with 0 for those below it.

        Every field of a difference lies within 63 bits, so half of the range of a field, added to
        each, keeps a field from borrowing of the next.
        """
        lifted = self.fields(difference + self._halves)
        return tuple([max(0, field - (1 << 63)) for field in lifted])

    def is_not_negative(self, difference: int) -> bool:
        """Return True if no field of a difference of entries is below zero."""
        return (difference + self._halves) & self._halves == self._halves

    def fold(self, raw: bytes) -> int:
        """Return an entry of all CPUs, as it was read, as the sum over the CPUs."""
        return self._added(int.from_bytes(raw, _ORDER)) & self._mask

    def fold_many(self, raw: bytes) -> list[int]:
        """Return many entries, read end to end, as the sums of each."""
        size, step, order = self._struct.size, self._struct.size * self._cpus, _ORDER
        folded = self._added(int.from_bytes(raw, order)).to_bytes(len(raw), order)
        return [int.from_bytes(folded[at : at + size], order) for at in range(0, len(raw), step)]

    def _added(self, raw: int) -> int:
        """Return a number with, in place of each part, its sum with the following CPUs' parts.

        The first part of an entry holds the entry's sum then; the other parts hold nothing of use.
        The number of parts in a sum is doubled, and one more part is added where the number of
        CPUs has a digit 1.
        """
        added, parts = raw, 1
        for digit in f"{self._cpus:b}"[1:]:
            added += added >> parts * self._bits
            parts *= 2
            if digit == "1":
                added = raw + (added >> self._bits)
                parts += 1
        return added


class Sums(Folding):
    """Reads the entries of one map, each as one number that can be added to others."""

    def __init__(self, counters: Counters) -> None:
        super().__init__(counters.cpu_value_size, counters.value_size)
        self._counters = counters

    def entry(self, index: int) -> int:
        """Return one entry."""
        raw = self._counters.lookup(index.to_bytes(4, _ORDER))
        return self.fold(raw) if raw else 0

    def entries(self, last: int, pause: Callable[[], None]) -> Entries:
        """Return the entries up to index ``last``, calling ``pause()`` after each block."""
        step = self._counters.value_size
        part = max(1, _FOLDED_AT_ONCE // step) * step
        entries, nothing = Entries(), bytes(part)
        for count, _, values in self._counters.blocks():
            for at in range(0, count * step, part):
                raw = values[at : min(at + part, count * step)]
                if raw == nothing[: len(raw)]:
                    entries.numbers += [0] * (len(raw) // step)
                else:
                    entries.numbers += self.fold_many(raw)
                pause()
            if len(entries.numbers) > last:
                break
        return entries


class Entries:
    """Entries as they were read; those that counted nothing are one object."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def total(self, indexes: Collection[int]) -> int:
        """Return the sum of some entries; those that were not read count nothing."""
        numbers = self.numbers
        try:
            return sum([numbers[at] for at in indexes])
        except IndexError:
            return sum([numbers[at] for at in indexes if at < len(numbers)])
