"""The short process that compiles: the only one that loads bcc, and LLVM with it (some 120 MB).

It reads one request as JSON from standard input and writes the bytecode to standard output or, when
there is none, one JSON object: ``{"error": ..., "hint": ...}``. The maps that bcc makes while it
compiles are gone when the process ends. It needs nothing but the standard library and bcc, because
bcc often belongs to another Python than the agent's.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpfsvc.base.errors import BpfsvcError, KernelError, SystemUnfit
from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader.bytecode import INSTRUCTION, Bytecode, Program
from bpfsvc.datapath.maps.layout import Field, Layout, MapLayout, Record

BCC_MISSING = SystemUnfit(
    "bcc, the compiler of the kernel programs, is not installed",
    "apt-get install python3-bpfcc (the PyPI package named bcc is another thing)",
)


def is_missing_bcc(error: BpfsvcError) -> bool:
    """True if an error, perhaps one of another process, is that there is no compiler."""
    return error.message == BCC_MISSING.message


TC_PROGRAMS = ("ingress", "egress", "ingress_l3", "egress_l3", "gc", "recount", "explain")
"""Programs of type tc that are attached, or run by the agent. Those of steps are another type's."""

_STEP = "STEP_"
"""How the constants of ``enum step`` begin. The program of STEP_X is called step_x."""

SOCKET_PROGRAMS = {
    "connect4": 10,
    "connect6": 11,
    "sendmsg4": 14,
    "sendmsg6": 15,
    "recvmsg4": 19,
    "recvmsg6": 20,
    "getpeername4": 29,
    "getpeername6": 30,
    "release": 34,
}
"""Socket programs and their attach types (``enum bpf_attach_type``)."""

WATCH_PROGRAM = {"sockops": 3}
"""The program that is told what happens to TCP sockets, and its attach type. It is attached while a
Service asks for it: it costs every connection something."""

TRACEPOINT_PROGRAMS = {
    "syn_again": "tcp_retransmit_skb",
    "syn_refused": "tcp_receive_reset",
    "socket_state": "inet_sock_set_state",
}
"""Programs that count failed connections of sockets, and how long sockets take to connect, and the
tracepoints where they are attached. Bpfsvc does without them where a kernel does not load them."""

DROP_PROGRAM = {"dropped": "kfree_skb"}
"""The program that is told of each packet that the kernel drops, and its tracepoint. It is attached
while somebody asks for such drops: it costs every dropped packet of the node something."""

_OF_ANY_CALL = ("release",)
"""Socket programs that see the socket and no address."""

XDP_PROGRAMS = ("xdp",)
"""Programs for uplinks, which see a packet before the kernel makes one of it."""

_SCHED_CLS, _XDP, _SOCK, _SOCK_OPS, _RAW_TRACEPOINT, _SOCK_ADDR = 3, 6, 9, 13, 17, 18

_XDP_ATTACH_TYPE = 37
"""BPF_XDP, which a link asks for."""

_LOAD_IMMEDIATE, _CALL = 0x18, 0x85
"""The instruction with a constant of 64 bits, twice as long as others; and a call."""

_WARNINGS = ("-Wno-unused-function", "-Werror=implicit-function-declaration")

_C = ("-fms-extensions", "-Wno-microsoft-anon-tag")
"""The kernel's C: a struct may have the fields of another one as its own."""

_MOVE = 0xB7
"""The instruction that writes a constant of 32 bits, with its sign, to a register."""

_CONSTANT = "constant_"
"""How the functions begin that return constants. They are compiled and never loaded."""

_STRUCT = "struct_"
"""How the names of maps begin that are never made and describe a struct (``DESCRIBE``)."""

_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ENUM = re.compile(r"\benum(?:\s+\w+)?\s*\{([^}]*)\}")
_ENUMERATOR = re.compile(r"(\w+)\s*(?:=[^,]*)?(?:,|$)")

_MAP = 1
"""BPF_PSEUDO_MAP_FD: the constant is the descriptor of a map."""

_LOADED_KIND = "LOADED_KIND"
"""The constant of the C sources that marks the number of a size, which the loader replaces."""

_LOADED = "LOADED_"
"""How the constants of such numbers begin: LOADED_MAX_CONNECTIONS is for max_connections."""

_SUBPROGRAM, _ARGUMENT = "SUBPROGRAM_", "ARGUMENT_"
"""How the constants begin by which programs call subprograms (``lib/subprograms.h``)."""

_TO_SUBPROGRAM = 1
"""BPF_PSEUDO_CALL: the called function is in the program itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """What to compile."""

    text: str
    digest: str
    defines: dict[str, int]
    include: str


def compile_text(request: CompileRequest) -> Bytecode:
    """Compile ``request``; raise :class:`BpfsvcError` if that fails."""
    module = compile_module(request)
    # Below bcc's Table classes, which do not know every type of map.
    from bcc.libbcc import lib

    for function in (lib.bpf_table_name, lib.bpf_table_key_desc_id, lib.bpf_table_leaf_desc_id):
        function.restype = ctypes.c_char_p
    maps, structs, names = {}, {}, {}
    for index in range(lib.bpf_num_tables(module.module)):
        fd = lib.bpf_table_fd_id(module.module, index)
        names[fd] = lib.bpf_table_name(module.module, index).decode()
        described = _map_layout(module, lib, index)
        if names[fd].startswith(_STRUCT):
            structs[names[fd].removeprefix(_STRUCT)] = described.value
        else:
            maps[names[fd]] = described
    constants = _constants(module, request.text)
    numbers = sorted((number, name) for name, number in constants.items() if name.startswith(_STEP))
    steps = tuple(name.lower() for _, name in numbers)
    wanted = dict.fromkeys((*TC_PROGRAMS, *steps), (_SCHED_CLS, 0))
    wanted |= dict.fromkeys(XDP_PROGRAMS, (_XDP, _XDP_ATTACH_TYPE))
    for name, attach_type in SOCKET_PROGRAMS.items():
        wanted[name] = (_SOCK if name in _OF_ANY_CALL else _SOCK_ADDR, attach_type)
    wanted |= {name: (_SOCK_OPS, attach_type) for name, attach_type in WATCH_PROGRAM.items()}
    wanted |= dict.fromkeys((*TRACEPOINT_PROGRAMS, *DROP_PROGRAM), (_RAW_TRACEPOINT, 0))
    programs = tuple(
        _program(name, kind, _with_subprograms(module, name, constants), names, constants)
        for name, kind in wanted.items()
    )
    terms = lib.bpf_module_license(module.module).decode()
    return Bytecode(Layout(request.digest, maps, constants, structs), terms, programs, steps)


def compile_module(request: CompileRequest) -> Any:
    """Return bcc's module: compiled, with empty maps, nothing loaded. Raise :class:`BpfsvcError`.

    The compiler's own messages go to standard error.
    """
    # bcc looks for kernel headers in a folder that must be called "include".
    with tempfile.TemporaryDirectory() as headers:
        Path(headers, "include").symlink_to(request.include)
        os.environ["BCC_KERNEL_SOURCE"] = headers
        try:
            from bcc import BPF
        except ImportError as error:
            raise BCC_MISSING from error
        options = [f"-D{name}={value}" for name, value in request.defines.items()]
        try:
            text = request.text + _functions(_enumerators(request.text))
            return BPF(text=text, cflags=[*options, *_WARNINGS, *_C])
        except Exception as error:  # bcc raises nothing narrower
            raise KernelError(f"the kernel programs do not compile: {error}") from error


def _enumerators(text: str) -> list[str]:
    """Return the names of all constants of enums in a C text."""
    bodies = _ENUM.findall(_COMMENT.sub("", text))
    return [name for body in bodies for name in _ENUMERATOR.findall(body)]


def _functions(constants: list[str]) -> str:
    """Return a C function for each constant that returns it, so that the compiler computes it."""
    return "".join(f"\n__u64 {_CONSTANT}{name}(void *_) {{ return {name}; }}" for name in constants)


def _constants(module: Any, text: str) -> dict[str, int]:
    """Return the values of the constants, read from the code of those functions."""
    values = {}
    for name in _enumerators(text):
        code = module.dump_func((_CONSTANT + name).encode())
        operation, low = struct.unpack_from("=B3xI", code)
        if operation == _LOAD_IMMEDIATE:
            values[name] = low | struct.unpack_from("=12xI", code)[0] << 32
        elif operation == _MOVE and low < 1 << 31:
            values[name] = low
        else:
            raise KernelError(f"the constant {name} cannot be read from the compiled code")
    return values


@dataclass(frozen=True, slots=True)
class _Linked:
    """The code of a program, and behind it the code of its subprograms; see :class:`Program`."""

    code: bytes
    subprograms: tuple[tuple[int, int], ...]


def _with_subprograms(module: Any, name: str, constants: dict[str, int]) -> _Linked:
    """Return the code of a program, and behind it the code of each subprogram that it calls.

    Both are in the same order of bytes, so a call differs from one of a helper by a mark in place
    of a register, and by a distance in place of a number.
    """
    code = bytearray(module.dump_func(name.encode()))
    numbers = {
        number: subprogram.removeprefix(_SUBPROGRAM)
        for subprogram, number in constants.items()
        if subprogram.startswith(_SUBPROGRAM)
    }
    begins: dict[str, int] = {}
    sizes = []
    for at in range(0, len(code), INSTRUCTION):
        operation, registers, number = struct.unpack_from("=BB2xi", code, at)
        if operation != _CALL or registers or number not in numbers:
            continue
        called = numbers[number]
        if called not in begins:
            begins[called] = len(code)
            sizes.append((len(code), constants[_ARGUMENT + called]))
            code += module.dump_func((_SUBPROGRAM + called).lower().encode())
        code[at + 1] = _TO_SUBPROGRAM << (4 if sys.byteorder == "little" else 0)
        distance = (begins[called] - at) // INSTRUCTION - 1
        struct.pack_into("=i", code, at + 4, distance)
    return _Linked(bytes(code), tuple(sizes))


def _program(
    name: str,
    kind: tuple[int, int],
    linked: _Linked,
    names: dict[int, str],
    constants: dict[str, int],
) -> Program:
    """Return the program without descriptors of maps and sizes, and where which of them belongs."""
    code = linked.code
    free = bytearray(code)
    references, numbers = [], []
    sizes = {
        number: size
        for size, number in constants.items()
        if size.startswith(_LOADED) and size != _LOADED_KIND
    }
    at = 0
    while at < len(code):
        operation, registers, constant = struct.unpack_from("=BB2xi", code, at)
        source = registers >> 4 if sys.byteorder == "little" else registers & 15
        if operation == _LOAD_IMMEDIATE and source == _MAP:
            references.append((at + 4, names[constant]))
            struct.pack_into("=i", free, at + 4, 0)
        elif operation == _LOAD_IMMEDIATE and source == constants[_LOADED_KIND]:
            numbers.append((at + 4, sizes[constant].removeprefix(_LOADED).lower()))
            free[at + 1] = registers & 15 if sys.byteorder == "little" else registers & 240
            struct.pack_into("=i", free, at + 4, 0)
        elif operation == _LOAD_IMMEDIATE and source:
            raise KernelError(
                f"program {name} refers to something that is no map",
                "neither global variables nor functions that are not inlined can be used",
            )
        at += INSTRUCTION * (2 if operation == _LOAD_IMMEDIATE else 1)
    maps = tuple(references)
    return Program(name, *kind, bytes(free), maps, tuple(numbers), linked.subprograms)


def _map_layout(module: Any, lib: Any, index: int) -> MapLayout:
    kind = lib.bpf_table_type_id(module.module, index)
    if syscall.TYPE_NAMES.get(kind) == "ringbuf":  # has no entries
        entries = lib.bpf_table_max_entries_id(module.module, index)
        return MapLayout("ringbuf", Record(()), Record(()), entries, 0)
    return MapLayout(
        type=syscall.TYPE_NAMES.get(kind, str(kind)),
        key=_describe(module, lib.bpf_table_key_desc_id(module.module, index)),
        value=_describe(module, lib.bpf_table_leaf_desc_id(module.module, index)),
        max_entries=lib.bpf_table_max_entries_id(module.module, index),
        flags=lib.bpf_table_flags_id(module.module, index),
    )


def _describe(module: Any, description: bytes) -> Record:
    if not description:  # a queue has no keys
        return Record(())
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
            start = offset + getattr(kind, field[0]).offset
            end = _flatten(field[1], path, start, end, fields)
        return end
    size = ctypes.sizeof(kind)
    if issubclass(kind, ctypes.Array | ctypes.Structure):
        fields.append((name or "address", f"{size}s"))
    else:
        fields.append((name or "value", {1: "B", 2: "H", 4: "I", 8: "Q"}[size]))
    return offset + size


def main() -> None:
    """Compile one request."""
    # What bcc prints must not be mixed with the bytecode.
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answer:
        try:
            answer.write(compile_text(CompileRequest(**json.load(sys.stdin))).encode())
        except BpfsvcError as error:
            answer.write(json.dumps({"error": error.message, "hint": error.hint}).encode())
            sys.exit(1)


if __name__ == "__main__":
    main()
