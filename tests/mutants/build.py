"""Compile the programs that a change is in, and nothing else."""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from pathlib import Path

from bpfsvc.datapath.loader import compiler
from bpfsvc.datapath.loader.bytecode import Bytecode, Program
from bpfsvc.datapath.loader.source import CSource

_ENTRY = re.compile(r"^int (\w+)\([^)]*\)\n\{\n.*?^\}\n", re.MULTILINE | re.DOTALL)
_SUBPROGRAM = "subprogram_"


def programs_text(text: str, wanted: set[str]) -> str:
    """Return the sources with these programs only, and all subprograms."""

    def kept(match: re.Match[str]) -> str:
        name = match[1]
        return match[0] if name in wanted or name.startswith(_SUBPROGRAM) else ""

    return _ENTRY.sub(kept, text)


def compile_programs(source: CSource, text: str, base: Bytecode, names: set[str]) -> list[Program]:
    """Return these programs, compiled from a text with one change; raise if it does not compile.

    Layout and constants are those of the base: changes are within functions.
    """
    with tempfile.TemporaryDirectory() as headers:
        Path(headers, "include").symlink_to(source.root / "include")
        os.environ["BCC_KERNEL_SOURCE"] = headers
        from bcc import BPF
        from bcc.libbcc import lib

        defines = [f"-D{name}={value}" for name, value in source.defines.items()]
        options = [*defines, *compiler._WARNINGS, *compiler._C, "-Wno-everything"]
        module = BPF(text=programs_text(text, names), cflags=options)
        lib.bpf_table_name.restype = ctypes.c_char_p
        maps = {
            lib.bpf_table_fd_id(module.module, index): lib.bpf_table_name(
                module.module, index
            ).decode()
            for index in range(lib.bpf_num_tables(module.module))
        }
    constants = base.layout.constants
    return [
        compiler._program(
            program.name,
            (program.kind, program.attach_type),
            compiler._with_subprograms(module, program.name, constants),
            maps,
            constants,
        )
        for program in base.programs
        if program.name in names
    ]
