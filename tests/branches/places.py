"""Where in the C sources each conditional jump comes from, as the compiler says it.

``python -m tests.branches.places`` compiles the sources and prints that as JSON. bcc gives the
lines of a program to nobody but the kernel, so a program that does nothing and has the same number
of instructions is loaded in the place of each, and the kernel is asked for its lines.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader import compiler
from bpfsvc.datapath.loader.bytecode import INSTRUCTION
from bpfsvc.datapath.loader.source import CSource, load
from tests.branches.instructions import Instruction, decode

_SCHED_CLS = 3
_BTF_BY_ID = 19
_INFO = 232
_BTF_ID, _LINES, _LINES_AT, _LINE_SIZE = 128, 148, 152, 172
"""Where ``struct bpf_prog_info`` has them."""
_RECORD = struct.Struct("=IIII")
"""``struct bpf_line_info``: instruction, name of the file, text, line and column."""

_NOTHING, _LEAVE = b"\xb7" + bytes(7), b"\x95" + bytes(7)


_STATEMENT_ENDS = (";", "{", "}", ":")


class NumberedSource(CSource):
    """The sources, compiled to the same code, with the right lines.

    bcc puts lines of its own before functions and into them, and tells the compiler nothing of it.
    """

    @cached_property
    def text(self) -> str:
        lines: list[str] = []
        number, name, before = 0, "", ""
        for line in super().text.splitlines():
            if line.startswith("#line "):
                _, at, quoted = line.split(maxsplit=2)
                number, name = int(at) - 1, quoted
            else:
                number += 1
                # Not within a macro, or the arguments of one.
                begins = line.startswith("\t") and before.endswith(_STATEMENT_ENDS)
                if begins or line == "{":
                    lines.append(f"#line {number} {name}")
                before = line or before
            lines.append(line)
        return "\n".join(lines)


class Branch(NamedTuple):
    """A conditional jump. The file is empty if it is not of these sources."""

    file: str
    line: int
    column: int
    operation: int
    number: int


def of_programs(source: CSource) -> dict[str, tuple[str, list[Branch]]]:
    """Return for each program its code, in hexadecimal digits, and its branches in their order."""
    numbered = NumberedSource(source.sizes, source.root, source.main)
    request = compiler.CompileRequest(
        text=numbered.text,
        digest=numbered.code_digest,
        defines=numbered.defines,
        include=str(numbered.root / "include"),
    )
    module = compiler.compile_module(request)
    reader = _Reader(module, numbered)
    answer = {}
    for program in compiler.compile_text(request).programs:
        code = decode(module.dump_func(program.name.encode()))
        functions = [program.name, *reader.called(code)]
        jumps = [branch for name in functions for branch in reader.branches(name)]
        answer[program.name] = (program.code.hex(), jumps)
    return answer


class _Reader:
    def __init__(self, module: Any, source: CSource) -> None:
        from bcc.libbcc import lib

        self._module = module
        self._load = lib.bcc_func_load
        self._root = source.root
        constants = compiler._constants(module, source.text)
        self._subprograms = {
            number: name.lower()
            for name, number in constants.items()
            if name.startswith(compiler._SUBPROGRAM)
        }

    def called(self, code: list[Instruction]) -> list[str]:
        """Return the subprograms that a program calls, in the order in which they follow it."""
        names: dict[str, None] = {}

        def add(instructions: list[Instruction]) -> None:
            for instruction in instructions:
                if instruction.is_call and not instruction.source:
                    name = self._subprograms.get(instruction.number)
                    if name and name not in names:
                        names[name] = None

        add(code)
        at = 0
        while at < len(names):
            add(decode(self._module.dump_func(list(names)[at].encode())))
            at += 1
        return list(names)

    def branches(self, name: str) -> Iterator[Branch]:
        """Yield the branches of a function."""
        code = decode(self._module.dump_func(name.encode()))
        lines = {at: (file, line, column) for at, file, line, column in self._lines(name)}
        current = ("", 0, 0)
        for at, instruction in enumerate(code):
            # Line 0 is what the compiler has moved or made: it belongs to what is before it.
            if at in lines and lines[at][1]:
                current = lines[at]
            if instruction.is_branch:
                by_register = instruction.operation & 8
                number = instruction.number if not by_register else 0
                yield Branch(*current, instruction.operation, number)

    def _lines(self, name: str) -> Iterator[tuple[int, str, int, int]]:
        length = len(self._module.dump_func(name.encode())) // INSTRUCTION
        code = ctypes.create_string_buffer(_NOTHING * (length - 1) + _LEAVE)
        size = length * INSTRUCTION
        program = self._load(
            *(self._module.module, _SCHED_CLS, name.encode(), code, size),
            *(b"GPL", 0, 0, None, 0, None, 0, -1),
        )
        assert program >= 0, f"nothing of {length} instructions can be loaded for {name}"
        try:
            info = syscall.info(program, _INFO)
            (types,) = struct.unpack_from("=I", info, _BTF_ID)
            (count,) = struct.unpack_from("=I", info, _LINES)
            records = ctypes.create_string_buffer(count * _RECORD.size)
            asked = ctypes.create_string_buffer(_INFO)
            struct.pack_into("=I", asked, _LINES, count)
            struct.pack_into("=Q", asked, _LINES_AT, ctypes.addressof(records))
            struct.pack_into("=I", asked, _LINE_SIZE, _RECORD.size)
            head = struct.pack("=IIQ", program, _INFO, ctypes.addressof(asked))
            syscall.call(syscall.OBJ_GET_INFO, head)
        finally:
            os.close(program)
        names = _strings(types)
        for at, file, _, where in _RECORD.iter_unpack(records.raw):
            path = names[file : names.index(b"\0", file)].decode()
            yield at, self._own(path), where >> 10, where & 1023

    def _own(self, path: str) -> str:
        """Return the path below the folder of the sources; empty if the file is not there."""
        parts = path.split("/")
        for start in range(len(parts)):
            own = "/".join(parts[start:])
            if own and (self._root / own).is_file():
                return own
        return ""


def _strings(types: int) -> bytes:
    """Return the names in the types with this id."""
    descriptor = syscall.call(_BTF_BY_ID, struct.pack("=III", types, 0, 0))
    try:
        (size,) = struct.unpack_from("=8xI", syscall.info(descriptor, 16))
        data = ctypes.create_string_buffer(size)
        info = ctypes.create_string_buffer(struct.pack("=QII", ctypes.addressof(data), size, 0), 16)
        head = struct.pack("=IIQ", descriptor, 16, ctypes.addressof(info))
        syscall.call(syscall.OBJ_GET_INFO, head)
    finally:
        os.close(descriptor)
    length, start, names = struct.unpack_from("=4xI8xII", data)
    return data.raw[length + start :][:names]


if __name__ == "__main__":
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answer:
        json.dump(of_programs(load(Sizes())), answer)
