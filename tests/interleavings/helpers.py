"""Helpers of the kernel, as far as packets between two pods and the connection GC need them.

Sockets, routes and the fast path are not there: no socket is found, and no route. Each is named by
its number in ``linux/bpf.h``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.fuzz.controlled import FACTOR, HZ, INCREMENT
from tests.interleavings.instructions import M32, M64
from tests.interleavings.machine import DATA, Helpers, Machine
from tests.interleavings.shared import PRIVATE, SHARED, Location, words

_LOOKUP, _UPDATE, _DELETE, _PUSH, _POP, _PEEK = 1, 2, 3, 87, 88, 89
_MAPS = (_LOOKUP, _UPDATE, _DELETE, _PUSH, _POP, _PEEK)
_NO_ROUTE, _NOT_SUPPORTED, _NO_ENTRY = 4, M64 - 94, M64 - 1
_MANGLED_ZERO, _FIELD = 0x20, 0x0F
REDIRECT = 7


class KernelHelpers(Helpers):
    """``steps``: the programs of tail calls, by number."""

    def __init__(self, steps: tuple[str, ...]) -> None:
        self._steps = steps
        self._calls: dict[int, Callable[[Machine, list[int]], int]] = {
            **{_LOOKUP: _lookup, _UPDATE: _update, _DELETE: _delete},
            **{_PUSH: _push, _POP: _pop, _PEEK: _peek, 12: self._tail_call},
            **{5: _clock, 160: _clock, 118: _jiffies, 7: _random},
            **{9: _store_bytes, 26: _load_bytes, 10: _l3_checksum, 11: _l4_checksum},
            **{28: _checksum_difference, 38: _change_tail, 23: lambda *_: REDIRECT},
            **{69: lambda *_: _NO_ROUTE, 84: lambda *_: 0, 85: lambda *_: 0, 86: lambda *_: 0},
        }

    def accessed(self, machine: Machine, number: int) -> tuple[list[Location], list[Location]]:
        reads, writes = _arguments(machine, number), list[Location]()
        registers = machine.run.registers
        if number in _MAPS:
            table = registers[1] >> 32 & 0xFFFF
            layout = machine.shared.tables.layouts[table]
            if layout.type == "queue":
                (reads if number == _PEEK else writes).append(("queue", table))
            elif layout.type == "array" and number == _UPDATE:
                row = SHARED | table << 16 | _index(machine)
                writes += words(row, 0, layout.value.size)
            elif layout.type in ("hash", "lru_hash"):
                key = machine.read(registers[2], layout.key.size)
                (reads if number == _LOOKUP else writes).append((table, key))
                if number != _LOOKUP:
                    # An entry that goes, or is replaced, gives its row away.
                    writes += [("rows", table), *_rows_written(machine, table, number)]
        return reads, writes

    def call(self, machine: Machine, number: int) -> int:
        return self._calls[number](machine, machine.run.registers)

    def _tail_call(self, machine: Machine, registers: list[int]) -> int:
        machine.run.jump(self._steps[registers[3] & M32])
        return 0


def _rows_written(machine: Machine, table: int, number: int) -> list[Location]:
    if number != _UPDATE:
        return []
    free = machine.shared.free.get(table, ())
    size = machine.shared.tables.layouts[table].value.size
    return list(words(free[0], 0, size)) if free else []


def _index(machine: Machine) -> int:
    return int(struct.unpack("=I", machine.read(machine.run.registers[2], 4))[0])


def _arguments(machine: Machine, number: int) -> list[Location]:
    """Return what a helper reads of shared memory by the pointers that it gets."""
    registers = machine.run.registers
    sizes: list[tuple[int, int]] = []
    if number in (_LOOKUP, _UPDATE, _DELETE, _PUSH):
        layout = machine.shared.tables.layouts[registers[1] >> 32 & 0xFFFF]
        value = registers[2] if number == _PUSH else registers[3]
        if number != _PUSH:
            sizes.append((registers[2], layout.key.size))
        if number in (_UPDATE, _PUSH):
            sizes.append((value, layout.value.size))
    elif number == 9:
        sizes.append((registers[3], registers[4]))
    elif number == 28:
        sizes += [(registers[1], registers[2]), (registers[3], registers[4])]
    return [
        location
        for address, size in sizes
        if size and address >> 32 >= SHARED
        for location in words(address >> 32, address & M32, size)
    ]


# -- maps --


def _table(machine: Machine) -> int:
    return machine.run.registers[1] >> 32 & 0xFFFF


def _key(machine: Machine) -> bytes:
    size = machine.shared.tables.layouts[_table(machine)].key.size
    return machine.read(machine.run.registers[2], size)


def _lookup(machine: Machine, _registers: list[int]) -> int:
    table = _table(machine)
    layout = machine.shared.tables.layouts[table]
    if layout.type == "percpu_hash":
        return 0
    if layout.type == "percpu_array":
        index = _index(machine)
        if index >= layout.max_entries:
            return 0
        region = PRIVATE | table << 16 | index
        machine.run.memory.setdefault(region, bytearray(layout.value.size))
        return region << 32
    return machine.shared.find(table, _key(machine)) << 32


def _update(machine: Machine, registers: list[int]) -> int:
    layout = machine.shared.tables.layouts[_table(machine)]
    if layout.type == "percpu_hash":
        return 0
    value = machine.read(registers[3], layout.value.size)
    return machine.shared.put(_table(machine), _key(machine), value, registers[4] & M32)


def _delete(machine: Machine, _registers: list[int]) -> int:
    return machine.shared.delete(_table(machine), _key(machine))


def _push(machine: Machine, registers: list[int]) -> int:
    table = _table(machine)
    layout = machine.shared.tables.layouts[table]
    queue = machine.shared.queues.get(table, ())
    if len(queue) >= layout.max_entries:
        return -7
    machine.shared.queues[table] = (*queue, machine.read(registers[2], layout.value.size))
    return 0


def _pop(machine: Machine, registers: list[int]) -> int:
    error = _peek(machine, registers)
    if not error:
        table = _table(machine)
        machine.shared.queues[table] = machine.shared.queues[table][1:]
    return error


def _peek(machine: Machine, registers: list[int]) -> int:
    queue = machine.shared.queues.get(_table(machine), ())
    if not queue:
        return -2
    machine.write(registers[2], queue[0])
    return 0


# -- time and random numbers --


def _clock(machine: Machine, _registers: list[int]) -> int:
    return machine.run.now


def _jiffies(machine: Machine, _registers: list[int]) -> int:
    return machine.run.now * HZ // 1_000_000_000


def _random(machine: Machine, _registers: list[int]) -> int:
    """As ``tests/fuzz/controlled.py`` has it."""
    machine.run.random = machine.run.random * FACTOR + INCREMENT & M64
    return machine.run.random >> 32


# -- the packet --


def _data(machine: Machine) -> bytearray:
    return machine.run.memory[DATA]


def _store_bytes(machine: Machine, registers: list[int]) -> int:
    data, at = _data(machine), registers[2] & M32
    new = machine.read(registers[3], registers[4] & M32)
    if at + len(new) > len(data):
        return -14
    data[at : at + len(new)] = new
    return 0


def _load_bytes(machine: Machine, registers: list[int]) -> int:
    data, at, size = _data(machine), registers[2] & M32, registers[4] & M32
    if at + size > len(data):
        machine.write(registers[3], bytes(size))
        return -14
    machine.write(registers[3], bytes(data[at : at + size]))
    return 0


def _change_tail(machine: Machine, registers: list[int]) -> int:
    data, size = _data(machine), registers[2] & M32
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))
    return 0


def _folded(total: int) -> int:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return int(total)


def _change_checksum(machine: Machine, at: int, change: int) -> int:
    """Add to what a checksum is of."""
    data = _data(machine)
    if at + 2 > len(data):
        return -14
    old = int(struct.unpack_from("<H", data, at)[0])
    struct.pack_into("<H", data, at, ~_folded((~old & 0xFFFF) + change) & 0xFFFF)
    return 0


def _l3_checksum(machine: Machine, registers: list[int]) -> int:
    _, _, at, before, after, _ = registers[:6]
    change = (~before & M32) + (after & M32)
    if not registers[5] & _FIELD:
        change = after & M32
    elif registers[5] & _FIELD == 2:
        change = (~before & 0xFFFF) + (after & 0xFFFF)
    return _change_checksum(machine, at & M32, change)


def _l4_checksum(machine: Machine, registers: list[int]) -> int:
    at, flags = registers[2] & M32, registers[5]
    if flags & _MANGLED_ZERO and _data(machine)[at : at + 2] == b"\0\0":
        return 0
    error = _l3_checksum(machine, registers)
    if flags & _MANGLED_ZERO and _data(machine)[at : at + 2] == b"\0\0":
        _data(machine)[at : at + 2] = b"\xff\xff"
    return error


def _checksum_difference(machine: Machine, registers: list[int]) -> int:
    before, after = (
        machine.read(registers[at], registers[at + 1] & M32) if registers[at + 1] & M32 else b""
        for at in (1, 3)
    )
    total = registers[5] & M32
    total += sum(~word & M32 for (word,) in struct.iter_unpack("<I", before))
    total += sum(word for (word,) in struct.iter_unpack("<I", after))
    while total >> 32:
        total = (total & M32) + (total >> 32)
    return int(total)
