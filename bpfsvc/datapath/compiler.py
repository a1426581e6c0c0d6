"""The short process that compiles: the only one that loads bcc, and LLVM with it (some 120 MB).

It reads one request as JSON from standard input and writes the bytecode to standard output or, when
there is none, one JSON object: ``{"error": ..., "hint": ...}``. The maps that bcc makes in passing
are gone when it ends. It needs nothing but the standard library and bcc, because bcc often belongs
to another Python than the agent's.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpfsvc.datapath import bpf
from bpfsvc.datapath.bytecode import INSTRUCTION, Bytecode, Program
from bpfsvc.datapath.layout import Field, Layout, MapLayout, Record
from bpfsvc.errors import BpfsvcError, KernelError, SystemUnfit

BCC_MISSING = SystemUnfit(
    "bcc, the compiler of the kernel programs, is not installed",
    "apt-get install python3-bpfcc (the PyPI package named bcc is another thing)",
)

STEPS = (
    "step_first",
    "step_careful",
    "step_icmp",
    "step_unusual",
    "step_rewrite",
    "step_open",
    "step_reject",
    "step_masquerade",
    "step_shortcut",
)
"""Programs that others jump to, by their index in the map ``steps``."""

TC_PROGRAMS = ("ingress", "egress", "ingress_l3", "egress_l3", "collect", "decide", *STEPS)

SOCKET_PROGRAMS = {
    "connect4": 10,
    "connect6": 11,
    "sendmsg4": 14,
    "sendmsg6": 15,
    "recvmsg4": 19,
    "recvmsg6": 20,
    "getpeername4": 29,
    "getpeername6": 30,
}
"""Socket programs and their attach types (``enum bpf_attach_type``)."""

XDP_PROGRAMS = ("edge",)
"""Programs for uplinks, which see a packet before the kernel makes one of it."""

_SCHED_CLS, _XDP, _SOCK_ADDR = 3, 6, 18

_XDP_ATTACH_TYPE = 37
"""BPF_XDP, which a link asks for."""

_LOAD_IMMEDIATE, _CALL = 0x18, 0x85
"""The instruction with a constant of 64 bits, twice as long as others; and a call."""

_MAP = 1
"""BPF_PSEUDO_MAP_FD: the constant is the descriptor of a map."""

_MACROS = """
#define MAP(type, key, leaf, name, max, flags) BPF_F_TABLE(type, key, leaf, name, max, flags)
#define SOCKET_STORAGE(leaf, name) \\
	BPF_F_TABLE("sk_storage", int, leaf, name, 0, BPF_F_NO_PREALLOC)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to compile."""

    text: str
    digest: str
    defines: dict[str, int]
    include: str


def compile_text(request: Request) -> Bytecode:
    """Do what ``request`` says; raise :class:`BpfsvcError` if it cannot be done."""
    module = _compile(request)
    # Below bcc's Table classes, which do not know every type of map.
    from bcc.libbcc import lib

    for function in (lib.bpf_table_name, lib.bpf_table_key_desc_id, lib.bpf_table_leaf_desc_id):
        function.restype = ctypes.c_char_p
    maps, names = {}, {}
    for index in range(lib.bpf_num_tables(module.module)):
        fd = lib.bpf_table_fd_id(module.module, index)
        names[fd] = lib.bpf_table_name(module.module, index).decode()
        maps[names[fd]] = _map_layout(module, lib, index, bpf.Map(os.dup(fd), names[fd]))
    wanted = dict.fromkeys(TC_PROGRAMS, (_SCHED_CLS, 0))
    wanted |= dict.fromkeys(XDP_PROGRAMS, (_XDP, _XDP_ATTACH_TYPE))
    wanted |= {name: (_SOCK_ADDR, attach_type) for name, attach_type in SOCKET_PROGRAMS.items()}
    programs = tuple(
        Program(name, *numbers, *_unlink(name, module.dump_func(name.encode()), names))
        for name, numbers in wanted.items()
    )
    terms = lib.bpf_module_license(module.module).decode()
    return Bytecode(Layout(request.digest, maps), terms, programs, STEPS)


def _compile(request: Request) -> Any:
    # The folder of stand-in headers must be called "include" to be found.
    with tempfile.TemporaryDirectory() as headers:
        Path(headers, "include").symlink_to(request.include)
        os.environ["BCC_KERNEL_SOURCE"] = headers
        try:
            from bcc import BPF
        except ImportError as error:
            raise BCC_MISSING from error
        options = [f"-D{name}={value}" for name, value in request.defines.items()]
        try:
            return BPF(text=_MACROS + request.text, cflags=[*options, "-Wno-unused-function"])
        except Exception as error:  # bcc raises nothing narrower
            raise KernelError(f"the kernel programs do not compile: {error}") from error


def _unlink(
    program: str, code: bytes, names: dict[int, str]
) -> tuple[bytes, tuple[tuple[int, str], ...]]:
    """Take the descriptors of maps out of the code, and say where which map belongs."""
    free = bytearray(code)
    references = []
    at = 0
    while at < len(code):
        operation, registers, constant = struct.unpack_from("=BB2xi", code, at)
        kind = registers >> 4 if sys.byteorder == "little" else registers & 15
        if operation == _LOAD_IMMEDIATE and kind == _MAP:
            references.append((at + 4, names[constant]))
            struct.pack_into("=i", free, at + 4, 0)
        elif operation in (_LOAD_IMMEDIATE, _CALL) and kind:
            raise KernelError(
                f"program {program} refers to something that is no map",
                "neither global variables nor functions that are not inlined can be used",
            )
        at += INSTRUCTION * (2 if operation == _LOAD_IMMEDIATE else 1)
    return bytes(free), tuple(references)


def _map_layout(module: Any, lib: Any, index: int, found: bpf.Map) -> MapLayout:
    layout = MapLayout(
        type=bpf.TYPE_NAMES.get(found.type, str(found.type)),
        key=_describe(module, lib.bpf_table_key_desc_id(module.module, index)),
        value=_describe(module, lib.bpf_table_leaf_desc_id(module.module, index)),
        max_entries=found.max_entries,
        flags=found.flags,
    )
    found.close()
    return layout


def _describe(module: Any, description: bytes) -> Record:
    kind = module._decode_table_type(json.loads(description))
    fields: list[Field] = []
    size = _flatten(kind, "", 0, 0, fields)
    missing = ctypes.sizeof(kind) - size
    if missing:
        fields.append(("", f"{missing}x"))
    return Record(tuple(fields))


def _flatten(kind: Any, name: str, offset: int, end: int, fields: list[Field]) -> int:
    """Append the fields of ``kind`` at ``offset``; return where they end."""
    if offset > end:
        fields.append(("", f"{offset - end}x"))
    if issubclass(kind, ctypes.Structure) and [f[0] for f in kind._fields_] != ["words"]:
        end = offset
        for field in kind._fields_:
            path = f"{name}.{field[0]}" if name else field[0]
            place = offset + getattr(kind, field[0]).offset
            end = _flatten(field[1], path, place, end, fields)
        return end
    size = ctypes.sizeof(kind)
    if issubclass(kind, ctypes.Array | ctypes.Structure):
        fields.append((name or "address", f"{size}s"))
    else:
        fields.append((name or "value", {1: "B", 2: "H", 4: "I", 8: "Q"}[size]))
    return offset + size


def main() -> None:
    """Serve one request."""
    # Whatever bcc prints must not get into the bytecode.
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answer:
        try:
            answer.write(compile_text(Request(**json.load(sys.stdin))).encode())
        except BpfsvcError as error:
            answer.write(json.dumps({"error": error.message, "hint": error.hint}).encode())
            sys.exit(1)


if __name__ == "__main__":
    main()
