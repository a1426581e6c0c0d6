"""Print how much work each program is for the verifier of the running kernel, as JSON.

``python -m tests.kernels.verified BYTECODE``: the number of instructions that the verifier has
followed, by program. Kernels before 5.16 tell it in the verifier's log only.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
import sys
from pathlib import Path

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath import syscall
from bpfsvc.datapath.kernel_names import kernel_name
from bpfsvc.datapath.loader import features
from bpfsvc.datapath.loader.bytecode import INSTRUCTION, Bytecode, Program
from bpfsvc.datapath.loader.creation import create_map, subprogram_types
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import load

_LOG_INSTRUCTIONS, _LOG_STATISTICS = 1, 4
_LOG_BYTES = 1 << 24
_LOG_END = 3000
"""Of the log of a program that is refused: bytes that are shown."""
_MOST = 500_000
"""Instructions of one program; the kernel gives up at twice as many."""
_FOLLOWED = re.compile(r"processed (\d+) insns")


def followed(build: Bytecode) -> dict[str, int]:
    """Load all programs, and attach none; return the instructions followed, by program."""
    maps = {
        name: create_map(kernel_name(name), layout) for name, layout in build.layout.maps.items()
    }
    return {program.name: _followed(program, build.license, maps) for program in build.programs}


def _followed(program: Program, license_text: str, maps: dict[str, int]) -> int:
    kernel = features.of_this_kernel()
    code = kernel.adapted(program.linked(maps))
    instructions = ctypes.create_string_buffer(code, len(code))
    terms = ctypes.create_string_buffer(license_text.encode())
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attributes = struct.pack(
        "=IIQQIIQ8x16s4xI",
        program.kind,
        len(code) // INSTRUCTION,
        *map(ctypes.addressof, (instructions, terms)),
        _LOG_INSTRUCTIONS | _LOG_STATISTICS,
        _LOG_BYTES,
        ctypes.addressof(log),
        kernel_name(program.name).encode(),
        program.attach_type,
    )
    behind = program.subprograms if features.MEMORY_ARGUMENTS in kernel.has else ()
    with subprogram_types(behind) as types:
        try:
            syscall.create(syscall.PROG_LOAD, attributes + types)
        except OSError as error:
            said = log.value.decode()[-_LOG_END:]
            sys.exit(f"the kernel refuses {program.name}: {error.strerror}\n{said}")
    return sum(int(number) for number in _FOLLOWED.findall(log.value.decode()))


def main() -> None:
    """Read the compiled programs from a directory, as an image has them."""
    source = load(Sizes())
    bytecode = ShippedPrograms(Path(sys.argv[1]), source.code_digest).read()
    if bytecode is None:
        sys.exit(f"{sys.argv[1]} has no programs of these sources")
    kernel = features.of_this_kernel()
    counts = followed(bytecode.sized(source, kernel.numbers()))
    largest = max(counts, key=lambda name: counts[name])
    if counts[largest] > _MOST:
        sys.exit(f"the verifier follows {counts[largest]} instructions of {largest}: over {_MOST}")
    print(json.dumps({"followed": counts, "without": [one.name for one in kernel.missing()]}))


if __name__ == "__main__":
    main()
