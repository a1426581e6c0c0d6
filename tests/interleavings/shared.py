"""The memory that all CPUs share: the maps of a node, as the programs see them.

A row of a hash map that is freed is given to the next key at once, as the kernel may do. So who
still has a pointer to it reads, and writes, the row of another key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from bpfsvc.datapath.maps.layout import MapLayout

SHARED, PRIVATE, DESCRIPTOR = 0x40000000, 0x10000000, 0x20000000
"""Bits of the upper half of an address: a row of all CPUs, one of this CPU, a map itself.

Below them are the number of the map and that of the row, of 16 bits each.
"""

ANY, ABSENT, PRESENT = 0, 1, 2
_EXISTS, _MISSING, _FULL = -17, -2, -7

Location = tuple[object, ...]
"""What two runs may both access: 8 bytes of a row, a key of a map, or a queue."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The maps of a build, by numbers, and what is in them before anything runs."""

    names: tuple[str, ...]
    layouts: tuple[MapLayout, ...]
    rows: dict[int, bytes]
    keys: dict[tuple[int, bytes], int]
    counts: dict[int, int]

    def number(self, name: str) -> int:
        """Return the number of a map."""
        return self.names.index(name)


@dataclass(slots=True)
class Shared:
    """The maps at one moment: what is different from the begin.

    * ``rows``: by the upper half of their addresses. ``keys``: rows; None: the key is gone.
    * ``free``: rows that were freed, the last one first. ``used``: the number of rows of a map.
    * ``gives_away``: a freed row is given to the next key. Without it a row keeps what is in it, as
      if the kernel waited until no program reads it.
    """

    tables: Tables
    rows: dict[int, bytes] = field(default_factory=dict)
    keys: dict[tuple[int, bytes], int | None] = field(default_factory=dict)
    free: dict[int, tuple[int, ...]] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    queues: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    gives_away: bool = True

    def copy(self) -> Shared:
        """Return a copy that can be changed by itself."""
        return Shared(
            self.tables,
            dict(self.rows),
            dict(self.keys),
            dict(self.free),
            dict(self.used),
            dict(self.queues),
            self.gives_away,
        )

    def key(self) -> tuple[object, ...]:
        """Return what is equal for equal contents."""
        parts = (self.rows, self.keys, self.free, self.used, self.queues)
        return tuple(frozenset(part.items()) for part in parts)

    def row(self, region: int) -> bytes:
        """Return the bytes of a row."""
        row = self.rows.get(region)
        if row is None:
            row = self.tables.rows.get(region)
        if row is None:
            row = bytes(self.tables.layouts[region >> 16 & 0xFF].value.size)
        return row

    def write(self, region: int, offset: int, data: bytes) -> None:
        """Write bytes of a row."""
        row = self.row(region)
        assert offset + len(data) <= len(row), "a write beyond a row"
        self.rows[region] = row[:offset] + data + row[offset + len(data) :]

    def find(self, number: int, key: bytes) -> int:
        """Return the upper half of the address of a key's row; 0 if there is none."""
        layout = self.tables.layouts[number]
        if layout.type == "array":
            index = int(struct.unpack("=I", key)[0])
            return SHARED | number << 16 | index if index < layout.max_entries else 0
        if layout.type == "lpm_trie":
            return self._longest(number, key)
        found = self.keys.get((number, key), -1)
        return (self.tables.keys.get((number, key), 0) if found == -1 else found) or 0

    def _longest(self, number: int, key: bytes) -> int:
        """Return the row of the longest prefix of a key."""
        best = -1, 0
        length = struct.unpack_from("=I", key)[0]
        data = int.from_bytes(key[4:], "big")
        for (table, other), row in self.tables.keys.items():
            if table != number:
                continue
            bits = struct.unpack_from("=I", other)[0]
            rest = len(key[4:]) * 8 - bits
            if bits <= length and data >> rest == int.from_bytes(other[4:], "big") >> rest:
                best = max(best, (bits, row))
        return best[1]

    def put(self, number: int, key: bytes, value: bytes, flag: int) -> int:
        """Write an entry, as the helper does; return its error, or 0."""
        there = self.find(number, key)
        if self.tables.layouts[number].type == "array":
            self.rows[there] = value
            return 0
        if there and flag == ABSENT:
            return _EXISTS
        if not there and flag == PRESENT:
            return _MISSING
        if not there and len(self.entries(number)) >= self.tables.layouts[number].max_entries:
            return _FULL
        # An entry that is there gets another row.
        row = self._take_row(number)
        self.rows[row] = value
        self.keys[number, key] = row
        if there:
            self._free_row(number, there)
        return 0

    def _take_row(self, number: int) -> int:
        free = self.free.get(number, ())
        if free:
            self.free[number] = free[1:]
            return free[0]
        used = self.used.get(number, self.tables.counts.get(number, 0))
        self.used[number] = used + 1
        return SHARED | number << 16 | used

    def _free_row(self, number: int, row: int) -> None:
        if self.gives_away:
            self.free[number] = (row, *self.free.get(number, ()))

    def delete(self, number: int, key: bytes) -> int:
        """Remove an entry, as the helper does; return its error, or 0."""
        there = self.find(number, key)
        if not there:
            return _MISSING
        self.keys[number, key] = None
        self._free_row(number, there)
        return 0

    def entries(self, number: int) -> dict[bytes, bytes]:
        """Return all entries of a hash map."""
        rows: dict[bytes, int | None] = {
            key: row for (table, key), row in self.tables.keys.items() if table == number
        }
        rows.update({key: row for (table, key), row in self.keys.items() if table == number})
        return {key: self.row(row) for key, row in rows.items() if row}

    def named(self, name: str) -> dict[bytes, bytes]:
        """Return all entries of a hash map of this name."""
        return self.entries(self.tables.number(name))


def words(region: int, offset: int, size: int) -> Iterable[Location]:
    """Return the locations of some bytes of a row."""
    return [(region, word) for word in range(offset // 8, (offset + size - 1) // 8 + 1)]
