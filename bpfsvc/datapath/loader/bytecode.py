"""The result of compiling, as a value: programs that are not loaded yet, and their maps.

It is all that loading needs, so it can be kept in a file and loaded without the compiler, by any
kernel: the compiler asks nothing of the kernel that shows in the code. Programs refer to maps by
name, because descriptors belong to one process; how the maps are made follows from the layout,
which is their only description here as elsewhere. The sizes of maps are set when it is loaded.

In bytes: one line of JSON, then the instructions end to end, then the SHA-256 of everything before.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from bpfsvc import __version__
from bpfsvc.datapath.loader.source import CSource, loaded_numbers, size_of
from bpfsvc.datapath.maps.layout import Layout, MapLayout

VERSION = [5, __version__]
"""The number of the format: the digest of a build does not tell how bpfsvc compiles it."""

INSTRUCTION = 8
"""Bytes."""

_CHECKSUM = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class Program:
    """One program. ``kind`` and ``attach_type`` are numbers of ``linux/bpf.h``."""

    name: str
    kind: int
    attach_type: int
    code: bytes
    references: tuple[tuple[int, str], ...]
    """Offsets in ``code`` to patch with map descriptors: 4 bytes, in host order."""
    sizes: tuple[tuple[int, str], ...] = ()
    """Where in ``code`` which number of ``enum loaded_number`` belongs, so too."""
    subprograms: tuple[tuple[int, int], ...] = ()
    """Where in ``code`` each subprogram begins, and how many bytes it is handed a pointer to."""

    def places(self) -> tuple[tuple[tuple[int, str | int], ...], ...]:
        """Return all that is known of places in ``code``, in the order of the fields."""
        return self.references, self.sizes, self.subprograms

    def linked(self, descriptors: dict[str, int]) -> bytes:
        """Return the instructions with the descriptors of the maps in their places."""
        code = bytearray(self.code)
        for offset, name in self.references:
            struct.pack_into("=i", code, offset, descriptors[name])
        return bytes(code)

    def with_numbers(self, numbers: Mapping[str, int]) -> Program:
        """Return the program for these sizes and this kernel; by ``enum loaded_number``."""
        code = bytearray(self.code)
        for offset, name in self.sizes:
            struct.pack_into("=i", code, offset, numbers[name])
        return replace(self, code=bytes(code), sizes=())


@dataclass(frozen=True, slots=True)
class Bytecode:
    """One build. ``steps``: the programs that others jump to, in the order of the map ``steps``.

    What comes from the compiler, or a file, is not of any sizes: :meth:`sized` makes the build.
    """

    layout: Layout
    license: str
    programs: tuple[Program, ...]
    steps: tuple[str, ...]

    def sized(self, source: CSource, of_kernel: Mapping[str, int]) -> Bytecode:
        """Return the build of ``source``, from what was compiled for all sizes and kernels.

        ``of_kernel``: ``Features.numbers()``.
        """

        def with_size(map_layout: MapLayout) -> MapLayout:
            size = size_of(map_layout.max_entries)
            if size is None:
                return map_layout
            name, more = size
            return replace(map_layout, max_entries=getattr(source.sizes, name) + more)

        maps = {name: with_size(map_layout) for name, map_layout in self.layout.maps.items()}
        layout = replace(self.layout, digest=source.digest, maps=maps)
        numbers = {**loaded_numbers(source.sizes), **of_kernel}
        programs = tuple(program.with_numbers(numbers) for program in self.programs)
        return replace(self, layout=layout, programs=programs)

    def encode(self) -> bytes:
        """Return the bytes that :meth:`decode` reads on machines with this order of bytes."""
        head = {
            "version": VERSION,
            "machine": machine(),
            "license": self.license,
            "steps": self.steps,
            "programs": [
                [
                    program.name,
                    program.kind,
                    program.attach_type,
                    len(program.code),
                    *program.places(),
                ]
                for program in self.programs
            ],
            "layout": self.layout.to_json(),
        }
        data = (
            json.dumps(head).encode() + b"\n" + b"".join(program.code for program in self.programs)
        )
        return data + hashlib.sha256(data).digest()

    @classmethod
    def decode(cls, data: bytes, digest: str) -> Bytecode:
        """Read what was compiled of the sources ``digest``.

        ``ValueError`` with a reason if this is not it.
        """
        content, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError("is damaged")
        try:
            head: dict[str, Any] = json.loads(content[: content.index(b"\n")])
            if head["version"] != VERSION:
                raise ValueError(f"was written by another version of bpfsvc: {head['version'][-1]}")
            if head["machine"] != machine():
                raise ValueError(
                    f"is of another machine: {head['machine']}, and this is {machine()}"
                )
            layout = Layout.from_json(head["layout"])
            programs = tuple(_programs(head["programs"], content))
            build = cls(layout, head["license"], programs, tuple(head["steps"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"is not what bpfsvc writes: {error!r}") from error
        if layout.digest != digest:
            raise ValueError("is of other sources")
        return build


def machine() -> str:
    """Return what the instructions depend on: the order of bytes, as ``little-endian``.

    Neither the processor nor the kernel matters: the sources include no header of either, bcc has
    LLVM generate instructions of the first version, and what a kernel lacks is replaced when
    programs are loaded. ``make kernels ARCH=arm64`` runs on arm64 what this machine compiles.
    """
    return f"{sys.byteorder}-endian"


def _programs(entries: list[list[Any]], content: bytes) -> list[Program]:
    sizes = [entry[3] for entry in entries]
    start = len(content) - sum(sizes)
    places = accumulate(sizes, initial=start)
    return [
        Program(name, kind, attach, content[at : at + size], *map(_places, patches))
        for (name, kind, attach, size, *patches), at in zip(entries, places, strict=False)
    ]


def _places(entries: list[list[Any]]) -> tuple[tuple[int, Any], ...]:
    return tuple((offset, what) for offset, what in entries)
