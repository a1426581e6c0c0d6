"""The short process that compiles: the only one that loads bcc, and LLVM with it (some 120 MB).

It reads one request as JSON from standard input, leaves maps and programs pinned in the directory
named there, and prints one JSON object: ``{}`` or ``{"error": ..., "hint": ...}``. It needs nothing
but the standard library and bcc, because bcc often belongs to another Python than the agent's.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpfsvc.datapath import bpf, crc32c
from bpfsvc.datapath.layout import Field, Layout, MapLayout, Record, read_layout
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

_SCHED_CLS, _SOCK_ADDR = 3, 18

OWN_MAPS = ("layout", "steps")
"""Maps that no two builds share."""

_UNPINNED = """
#define MAP(type, key, leaf, name, max, flags) BPF_F_TABLE(type, key, leaf, name, max, flags)
#define SOCKET_STORAGE(leaf, name) \\
	BPF_F_TABLE("sk_storage", int, leaf, name, 0, BPF_F_NO_PREALLOC)
"""

_PINNED = """
#define MAP(type, key, leaf, name, max, flags) \\
	BPF_TABLE_PINNED(type, key, leaf, name, max, MAP_DIRECTORY "/" #name, flags)
#define SOCKET_STORAGE(leaf, name) \\
	BPF_TABLE_PINNED("sk_storage", int, leaf, name, 0, MAP_DIRECTORY "/" #name, BPF_F_NO_PREALLOC)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to compile, and where the result goes."""

    text: str
    digest: str
    defines: dict[str, int]
    include: str
    directory: str
    previous: str = ""
    """Directory of the maps in use; those of unchanged layout are taken over."""


def compile_and_pin(request: Request) -> None:
    """Do what ``request`` says; raise :class:`BpfsvcError` if it cannot be done."""
    maps = Path(request.directory, "maps")
    programs = Path(request.directory, "programs")
    maps.mkdir(parents=True)
    programs.mkdir()
    if request.previous:
        layout = _layout(_compile(request, _UNPINNED), request)
        _take_over(layout, Path(request.previous), maps)
    module = _compile(request, _PINNED, f'-DMAP_DIRECTORY="{maps}"')
    layout = _layout(module, request)
    _check_sizes(layout, maps)
    wanted = dict.fromkeys(TC_PROGRAMS, (_SCHED_CLS, -1))
    wanted |= {name: (_SOCK_ADDR, attach_type) for name, attach_type in SOCKET_PROGRAMS.items()}
    # The verifier takes a quarter of a second for each of the large ones, and has no lock.
    with ThreadPoolExecutor() as pool:
        loaded = pool.map(lambda name: _load(module, name, *wanted[name]), wanted)
        for name, program in zip(wanted, loaded, strict=True):
            bpf.pin(program, programs / name)
            if name in STEPS:
                _write(maps / "steps", STEPS.index(name), program.to_bytes(4, sys.byteorder))
    for n, row in enumerate(crc32c.steps()):
        _write(maps / "crc32c_steps", n, row)
    _write(maps / "layout", 0, layout.to_json().encode())


def _compile(request: Request, prelude: str, *flags: str) -> Any:
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
            return BPF(
                text=prelude + request.text, cflags=[*options, *flags, "-Wno-unused-function"]
            )
        except Exception as error:  # bcc raises nothing narrower
            raise KernelError(f"the kernel programs do not compile: {error}") from error


def _load(module: Any, name: str, kind: int, attach_type: int) -> int:
    try:
        function = module.load_func(name, kind, attach_type=attach_type)
    except Exception as error:  # bcc raises nothing narrower
        raise SystemUnfit(
            f"this kernel ({os.uname().release}) refuses the program {name}: {error}",
            "bpfsvc is tested on Linux 6.1 and 6.18, and needs root, or CAP_BPF and CAP_NET_ADMIN",
        ) from error
    return int(function.fd)


def _layout(module: Any, request: Request) -> Layout:
    # Below bcc's Table classes, which do not know every type of map.
    from bcc.libbcc import lib

    for function in (lib.bpf_table_name, lib.bpf_table_key_desc_id, lib.bpf_table_leaf_desc_id):
        function.restype = ctypes.c_char_p
    maps = {}
    for index in range(lib.bpf_num_tables(module.module)):
        name = lib.bpf_table_name(module.module, index).decode()
        found = bpf.Map(os.dup(lib.bpf_table_fd_id(module.module, index)), name)
        maps[name] = MapLayout(
            type=bpf.TYPE_NAMES.get(found.type, str(found.type)),
            key=_describe(module, lib.bpf_table_key_desc_id(module.module, index)),
            value=_describe(module, lib.bpf_table_leaf_desc_id(module.module, index)),
            max_entries=found.max_entries,
            flags=found.flags,
        )
        found.close()
    return Layout(request.digest, maps)


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


def _take_over(layout: Layout, previous: Path, maps: Path) -> None:
    old = read_layout(previous)
    for name, wanted in layout.maps.items():
        if name not in OWN_MAPS and old.maps.get(name) == wanted:
            fd = bpf.get(previous / name)
            bpf.pin(fd, maps / name)
            os.close(fd)


def _write(pin: Path, index: int, value: bytes) -> None:
    found = bpf.Map.pinned(pin)
    try:
        key = index.to_bytes(found.key_size, sys.byteorder)
        found.update(key, value.ljust(found.value_size, b"\0"))
    finally:
        found.close()


def _check_sizes(layout: Layout, maps: Path) -> None:
    for name, wanted in layout.maps.items():
        found = bpf.Map.pinned(maps / name)
        sizes = (found.key_size, found.cpu_value_size if found.per_cpu else found.value_size)
        found.close()
        expected = wanted.value.size + (-wanted.value.size % 8 if found.per_cpu else 0)
        if sizes != (wanted.key.size, expected):
            raise KernelError(
                f"map {name} has rows of {sizes} bytes, not {wanted.key.size}, {expected}"
            )


def main() -> None:
    """Serve one request."""
    try:
        compile_and_pin(Request(**json.load(sys.stdin)))
    except BpfsvcError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}))
        sys.exit(1)
    print("{}")


if __name__ == "__main__":
    main()
