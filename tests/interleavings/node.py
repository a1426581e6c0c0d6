"""A node of packet tests, copied: its programs and the contents of its maps for the machine."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.loader import features
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.source import CSource
from bpfsvc.datapath.maps.pins import Pinned
from tests.fuzz.controlled_node import compiled, marked_source
from tests.interleavings.helpers import KernelHelpers
from tests.interleavings.instructions import decoded
from tests.interleavings.machine import Machine
from tests.interleavings.shared import SHARED, Tables

PROGRAMS = ("ingress", "egress", "gc")
_KEYED = ("hash", "lru_hash", "lpm_trie")


def machine_of(source: CSource | None = None) -> tuple[Machine, tuple[str, ...]]:
    """Return a machine with the programs of a source, and the names of its maps by their number."""
    source = source or marked_source()
    build: Bytecode = compiled(source).sized(source, features.of_this_kernel().numbers())
    wanted = {*PROGRAMS, *build.steps}
    programs = [program for program in build.programs if program.name in wanted]
    names = tuple(sorted({name for program in programs for _, name in program.references}))
    numbers = {name: number for number, name in enumerate(names)}
    code = {program.name: decoded(program.linked(numbers)) for program in programs}
    return Machine(code, KernelHelpers(build.steps)), names


def tables_of(pinned: Pinned, names: tuple[str, ...]) -> Tables:
    """Return what is in the maps of a node now."""
    layouts = tuple(pinned.layout.maps[name] for name in names)
    rows: dict[int, bytes] = {}
    keys: dict[tuple[int, bytes], int] = {}
    counts: dict[int, int] = {}
    for number, (name, layout) in enumerate(zip(names, layouts, strict=True)):
        if layout.type == "array":
            for key, value in pinned.map(name).items():
                if any(value):
                    rows[SHARED | number << 16 | int(struct.unpack("=I", key)[0])] = value
        elif layout.type in _KEYED:
            for count, (key, value) in enumerate(sorted(pinned.map(name).items())):
                row = SHARED | number << 16 | count
                keys[number, key], rows[row] = row, value
                counts[number] = count + 1
    return Tables(names, layouts, rows, keys, counts)


Write = tuple[str, bytes, bytes | None]
"""Of the control plane: the map, the key, and the value, or None if the key goes."""


@contextmanager
def recorded(pinned: Pinned) -> Iterator[list[Write]]:
    """Record what is written to the maps of a node, in this order."""
    writes: list[Write] = []
    names = {id(pinned.map(name)): name for name in pinned.layout.maps if name in _opened(pinned)}
    update, delete = Map.update, Map.delete
    many, delete_many = Map.update_many, Map.delete_many

    def note(table: Map, key: bytes, value: bytes | None) -> None:
        if id(table) in names:
            writes.append((names[id(table)], key, value))

    def noted_update(table: Map, key: bytes, value: bytes, *rest: Any, **more: Any) -> Any:
        note(table, key, value)
        return update(table, key, value, *rest, **more)

    def noted_delete(table: Map, key: bytes, *rest: Any, **more: Any) -> Any:
        note(table, key, None)
        return delete(table, key, *rest, **more)

    def noted_many(table: Map, entries: Any, *rest: Any, **more: Any) -> Any:
        listed = list(entries)
        for key, value in listed:
            note(table, key, value)
        return many(table, listed, *rest, **more)

    def noted_delete_many(table: Map, keys: Any, *rest: Any, **more: Any) -> Any:
        listed = list(keys)
        for key in listed:
            note(table, key, None)
        return delete_many(table, listed, *rest, **more)

    with (
        patch.object(Map, "update", noted_update),
        patch.object(Map, "delete", noted_delete),
        patch.object(Map, "update_many", noted_many),
        patch.object(Map, "delete_many", noted_delete_many),
    ):
        yield writes


def _opened(pinned: Pinned) -> list[str]:
    return [name for name in pinned.layout.maps if (pinned.directory / "maps" / name).exists()]
