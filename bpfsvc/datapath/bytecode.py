"""What compiling yields, as a value: programs before the kernel has seen them, and their maps.

It is all that loading needs, so it can be kept in a file and loaded without the compiler. Programs
refer to maps by name, because descriptors belong to one process; how the maps are made follows from
the layout, which is their only description here as elsewhere.

In bytes: one line of JSON, then the instructions end to end, then the SHA-256 of everything before.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from bpfsvc import __version__
from bpfsvc.datapath import bpf
from bpfsvc.datapath.layout import Layout

VERSION = [1, __version__]
"""The number is that of the format. The digest of a build does not tell how bpfsvc compiles it."""

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
    """Where in ``code`` the descriptor of which map belongs: 4 bytes, in host order."""

    def linked(self, descriptors: dict[str, int]) -> bytes:
        """Give the instructions with the descriptors of the maps in their places."""
        code = bytearray(self.code)
        for offset, name in self.references:
            struct.pack_into("=i", code, offset, descriptors[name])
        return bytes(code)


@dataclass(frozen=True, slots=True)
class Bytecode:
    """One build. ``steps``: the programs that others jump to, in the order of the map ``steps``."""

    layout: Layout
    license: str
    programs: tuple[Program, ...]
    steps: tuple[str, ...]

    def encode(self) -> bytes:
        """Give the bytes that :meth:`decode` reads on this kernel."""
        head = {
            "version": VERSION,
            "kernel": kernel(),
            "license": self.license,
            "steps": self.steps,
            "programs": [
                [one.name, one.kind, one.attach_type, len(one.code), one.references]
                for one in self.programs
            ],
            "layout": self.layout.to_json(),
        }
        data = json.dumps(head).encode() + b"\n" + b"".join(one.code for one in self.programs)
        return data + hashlib.sha256(data).digest()

    @classmethod
    def decode(cls, data: bytes, digest: str) -> Bytecode:
        """Read the build ``digest``; ``ValueError`` with a reason if this is not it."""
        content, checksum = data[:-_CHECKSUM], data[-_CHECKSUM:]
        if hashlib.sha256(content).digest() != checksum:
            raise ValueError("is damaged")
        try:
            head: dict[str, Any] = json.loads(content[: content.index(b"\n")])
            if head["version"] != VERSION:
                raise ValueError("was written by another version of bpfsvc")
            if head["kernel"] != kernel():
                raise ValueError("is of another kernel or machine")
            layout = Layout.from_json(head["layout"])
            programs = tuple(_programs(head["programs"], content))
            build = cls(layout, head["license"], programs, tuple(head["steps"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"is not what bpfsvc writes: {error!r}") from error
        if layout.digest != digest:
            raise ValueError("is of another build")
        return build


def kernel() -> list[str]:
    """Say for which kernel one compiles: equal for all boots of one on one machine.

    bcc asks the running kernel what it can do while it compiles, and nobody promises that this
    does not show in the code.
    """
    system = os.uname()
    return [system.release, system.version, system.machine, str(bpf.possible_cpus())]


def _programs(rows: list[list[Any]], content: bytes) -> list[Program]:
    sizes = [row[3] for row in rows]
    start = len(content) - sum(sizes)
    places = accumulate(sizes, initial=start)
    return [
        Program(name, kind, attach_type, content[at : at + size], _references(references))
        for (name, kind, attach_type, size, references), at in zip(rows, places, strict=False)
    ]


def _references(rows: list[list[Any]]) -> tuple[tuple[int, str], ...]:
    return tuple((offset, name) for offset, name in rows)
