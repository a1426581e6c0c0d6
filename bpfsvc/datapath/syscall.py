"""The bpf(2) system call: programs, pins and links, as far as bpfsvc uses them.

Entries of maps are read and written by :mod:`bpfsvc.datapath.bpf_map`. Layouts and numbers stand in
``linux/bpf.h``. This wrapper needs only the C library.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
from pathlib import Path

SYS_BPF = {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "s390x": 351, "riscv64": 280}

MAP_CREATE, PROG_LOAD = 0, 5
MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, MAP_NEXT_KEY, MAP_LOOKUP_AND_DELETE = 1, 2, 3, 4, 21
OBJ_PIN, OBJ_GET = 6, 7
PROG_TEST_RUN = 10
OBJ_GET_INFO = 15
PROG_QUERY, RAW_TRACEPOINT_OPEN = 16, 17
MAP_LOOKUP_BATCH, MAP_UPDATE_BATCH, MAP_DELETE_BATCH = 24, 26, 27
LINK_CREATE, LINK_UPDATE, LINK_DETACH = 28, 29, 34

ANY, NOEXIST, EXIST = 0, 1, 2
TYPE_NAMES = {
    1: "hash",
    2: "array",
    3: "prog_array",
    5: "percpu_hash",
    6: "percpu_array",
    9: "lru_hash",
    10: "lru_percpu_hash",
    11: "lpm_trie",
    22: "queue",
    24: "sk_storage",
    27: "ringbuf",
}

_MAX_PROGRAMS = 64
"""At one hook of an interface; the kernel's limit."""

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_number = SYS_BPF.get(os.uname().machine, -1)


def call(command: int, attributes: bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Make one bpf(2) call and return its result; raise ``OSError`` when it fails."""
    if isinstance(attributes, bytes):
        attributes = ctypes.create_string_buffer(attributes, len(attributes))
    result = _syscall(_number, command, attributes, len(attributes))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def create(command: int, attributes: bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Make a map or load a program; return its descriptor.

    Before Linux 5.11 their memory counts as locked memory of this process, whose usual limit is too
    low for one map. There this lifts the limit, for all that this process makes afterwards.
    """
    try:
        return call(command, attributes)
    except PermissionError as error:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        if resource.getrlimit(resource.RLIMIT_MEMLOCK) == unlimited:
            raise
        try:
            resource.setrlimit(resource.RLIMIT_MEMLOCK, unlimited)
        except (OSError, ValueError):
            # Not allowed without CAP_SYS_RESOURCE.
            raise error from None
    return call(command, attributes)


def address_of(buffer: ctypes.Array[ctypes.c_char]) -> int:
    """Return the address of a buffer. The caller keeps the buffer until the call has returned."""
    return ctypes.addressof(buffer)


def buffer_of(data: bytes) -> ctypes.Array[ctypes.c_char]:
    """Return a buffer with these bytes, and no zero byte behind them."""
    return ctypes.create_string_buffer(data, len(data))


def pin(fd: int, path: Path) -> None:
    """Pin the object behind ``fd`` at a path in a bpf file system."""
    name = buffer_of(os.fsencode(path) + b"\0")
    call(OBJ_PIN, struct.pack("=QII", address_of(name), fd, 0))


def keep_link(link: int, path: Path) -> None:
    """Pin a link at a path, in place of another pin, and close the link's descriptor."""
    try:
        path.unlink(missing_ok=True)
        pin(link, path)
    finally:
        os.close(link)


def get(path: Path) -> int:
    """Open a pinned object; the caller owns the descriptor. ``FileNotFoundError`` if absent."""
    name = buffer_of(os.fsencode(path) + b"\0")
    try:
        return call(OBJ_GET, struct.pack("=QII", address_of(name), 0, 0))
    except OSError as error:
        error.filename = str(path)
        raise


def info(fd: int, size: int) -> bytes:
    """Read the first ``size`` bytes of ``struct bpf_{prog,map,link}_info``."""
    data = ctypes.create_string_buffer(size)
    call(OBJ_GET_INFO, struct.pack("=IIQ", fd, size, address_of(data)))
    return data.raw


def program_id(fd: int) -> int:
    """Return the kernel's id of a program."""
    return int(struct.unpack_from("=I", info(fd, 8), 4)[0])


def program_test_run(
    fd: int, packet: bytes, *, context: bytes = b"", room: int = 256, repeat: int = 1
) -> tuple[int, bytes]:
    """Run a program on a packet; return its verdict and the packet as the program left it.

    * ``context`` is a ``struct __sk_buff`` or a prefix of it; the kernel allows only a few fields.
    * ``repeat``: how often it runs; each run gets the packet as the one before has left it.
    """
    data_in = buffer_of(packet)
    data_out = ctypes.create_string_buffer(len(packet) + room)
    context_in = buffer_of(context)
    attributes = buffer_of(
        struct.pack(
            "=IIIIQQIIIIQQII",
            fd,
            0,
            len(packet),
            len(data_out),
            address_of(data_in),
            address_of(data_out),
            repeat,
            0,
            len(context),
            0,
            address_of(context_in) if context else 0,
            0,
            0,
            0,
        )
    )
    while True:
        try:
            call(PROG_TEST_RUN, attributes)
            break
        except InterruptedError:
            # A signal came between two runs. Nothing was returned, so all begins anew.
            continue
    verdict, _, size = struct.unpack_from("=III", attributes.raw, 4)
    return verdict, data_out.raw[:size]


def programs_at(ifindex: int, attach_type: int) -> tuple[int, ...]:
    """Return the ids of the programs at a hook of an interface, in the order in which they run."""
    ids = ctypes.create_string_buffer(4 * _MAX_PROGRAMS)
    # target_ifindex, attach_type, query_flags, attach_flags, prog_ids, count, and unused fields
    attributes = ctypes.create_string_buffer(
        struct.pack("=IIIIQI36x", ifindex, attach_type, 0, 0, address_of(ids), _MAX_PROGRAMS), 64
    )
    call(PROG_QUERY, attributes)
    count = min(_MAX_PROGRAMS, struct.unpack_from("=I", attributes, 24)[0])
    return struct.unpack_from(f"={count}I", ids)


def link_create(program: int, target: int, attach_type: int, flags: int = 0) -> int:
    """Attach a program by a link to a cgroup (descriptor) or an interface (index)."""
    return call(LINK_CREATE, struct.pack("=IIII16x", program, target, attach_type, flags))


def tracepoint_open(program: int, name: str) -> int:
    """Attach a program to a raw tracepoint; return the link."""
    text = buffer_of(name.encode() + b"\0")
    return call(RAW_TRACEPOINT_OPEN, struct.pack("=QI4x", address_of(text), program))


def link_update(link: int, program: int) -> None:
    """Replace the program behind a link in one step."""
    call(LINK_UPDATE, struct.pack("=IIII", link, program, 0, 0))


def link_detach(link: int) -> None:
    """Detach now, without waiting until the last reference is closed."""
    call(LINK_DETACH, struct.pack("=I", link))


def link_cgroup(link: int) -> int:
    """Return the id of the cgroup that a link is attached to; 0 once that is gone."""
    # struct bpf_link_info: type, id, prog_id, padding, then struct { __u64 cgroup_id; ... }.
    return int(struct.unpack_from("=Q", info(link, 24), 16)[0])


def link_ifindex(link: int) -> int:
    """Return the index of the interface of a tcx or XDP link; 0 once that is gone."""
    return int(struct.unpack_from("=I", info(link, 24), 16)[0])


def link_program(link: int) -> int:
    """Return the id of the program behind a link."""
    return int(struct.unpack_from("=I", info(link, 24), 8)[0])


def cgroup_id(directory: int) -> int:
    """Return the id of the cgroup behind an open directory."""
    return os.fstat(directory).st_ino


def possible_cpus() -> int:
    """Return the number of CPUs that a per-CPU value has room for."""
    text = Path("/sys/devices/system/cpu/possible").read_text().strip()
    return int(text.split(",")[-1].split("-")[-1]) + 1
