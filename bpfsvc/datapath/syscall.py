"""The bpf(2) system call: maps, programs, pins and links, as far as bpfsvc uses them.

bcc is a compiler and runs in a process of its own for a short time; its Python map calls are slow,
and its batch calls corrupt memory. This wrapper needs only the C library, and its batches read ten
thousand entries at the cost of ten calls. Layouts and numbers stand in ``linux/bpf.h``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import KernelError, MapFull

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
_NOT_SUPPORTED = 524
"""ENOTSUPP, which has no name outside of the kernel: this type of map lacks the operation."""
PER_CPU_TYPES = {5, 6, 10}
"""BPF_MAP_TYPE_PERCPU_HASH, _PERCPU_ARRAY, _LRU_PERCPU_HASH."""
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


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def _buffer(data: bytes) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(data, len(data))


def pin(fd: int, path: Path) -> None:
    """Pin the object behind ``fd`` at a path in a bpf file system."""
    name = _buffer(os.fsencode(path) + b"\0")
    call(OBJ_PIN, struct.pack("=QII", _address(name), fd, 0))


def keep_link(link: int, path: Path) -> None:
    """Pin a link at a path, in place of another pin, and close the link's descriptor."""
    try:
        path.unlink(missing_ok=True)
        pin(link, path)
    finally:
        os.close(link)


def get(path: Path) -> int:
    """Open a pinned object; the caller owns the descriptor. ``FileNotFoundError`` if absent."""
    name = _buffer(os.fsencode(path) + b"\0")
    try:
        return call(OBJ_GET, struct.pack("=QII", _address(name), 0, 0))
    except OSError as error:
        error.filename = str(path)
        raise


def info(fd: int, size: int) -> bytes:
    """Read the first ``size`` bytes of ``struct bpf_{prog,map,link}_info``."""
    data = ctypes.create_string_buffer(size)
    call(OBJ_GET_INFO, struct.pack("=IIQ", fd, size, _address(data)))
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
    data_in = _buffer(packet)
    data_out = ctypes.create_string_buffer(len(packet) + room)
    context_in = _buffer(context)
    attributes = _buffer(
        struct.pack(
            "=IIIIQQIIIIQQII",
            fd,
            0,
            len(packet),
            len(data_out),
            _address(data_in),
            _address(data_out),
            repeat,
            0,
            len(context),
            0,
            _address(context_in) if context else 0,
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
        struct.pack("=IIIIQI36x", ifindex, attach_type, 0, 0, _address(ids), _MAX_PROGRAMS), 64
    )
    call(PROG_QUERY, attributes)
    count = min(_MAX_PROGRAMS, struct.unpack_from("=I", attributes, 24)[0])
    return struct.unpack_from(f"={count}I", ids)


def link_create(program: int, target: int, attach_type: int, flags: int = 0) -> int:
    """Attach a program by a link to a cgroup (descriptor) or an interface (index)."""
    return call(LINK_CREATE, struct.pack("=IIII16x", program, target, attach_type, flags))


def tracepoint_open(program: int, name: str) -> int:
    """Attach a program to a raw tracepoint; return the link."""
    text = _buffer(name.encode() + b"\0")
    return call(RAW_TRACEPOINT_OPEN, struct.pack("=QI4x", _address(text), program))


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


class Block(NamedTuple):
    """Some entries of a map as they were read: keys end to end, and values likewise."""

    size: int
    keys: bytes
    values: bytes

    def key(self, index: int) -> bytes:
        """Return one key."""
        width = len(self.keys) // self.size
        return self.keys[index * width : (index + 1) * width]


class Map:
    """A map in the kernel. Keys and values are bytes; per-CPU values are end to end."""

    def __init__(self, fd: int, name: str, flag: str = "") -> None:
        """Take ``fd`` over. ``flag``: the option that enlarges the map, for error messages."""
        self.fd = fd
        self.name = name
        self.flag = flag
        self.type, _, self.key_size, size, self.max_entries, self.flags = struct.unpack_from(
            "=IIIIII", info(fd, 24)
        )
        self.per_cpu = self.type in PER_CPU_TYPES
        self.cpu_value_size = size + -size % 8
        self.value_size = self.cpu_value_size * possible_cpus() if self.per_cpu else size
        self._value = ctypes.create_string_buffer(self.value_size)

    @classmethod
    def pinned(cls, path: Path, flag: str = "") -> Map:
        """Open a pinned map, named after its file."""
        return cls(get(path), path.name, flag)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def lookup(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no such entry."""
        return self._read(MAP_LOOKUP, key)

    def take(self, key: bytes) -> bytes | None:
        """Delete an entry of a hash map, and return its last value; None if there is none.

        Before Linux 5.14 what programs write to the entry meanwhile may be missing in the value.
        """
        try:
            return self._read(MAP_LOOKUP_AND_DELETE, key)
        except KernelError as error:
            if not _is_unsupported(error.__cause__):
                raise
        value = self.lookup(key)
        return value if value is not None and self.delete(key) else None

    def _read(self, command: int, key: bytes) -> bytes | None:
        try:
            call(command, _element(self.fd, _buffer(key), self._value, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise KernelError(f"map {self.name}: cannot read: {error.strerror}") from error
        return self._value.raw

    def update(self, key: bytes, value: bytes, flags: int = ANY) -> bool:
        """Write an entry; False if ``NOEXIST`` or ``EXIST`` forbids that."""
        try:
            call(MAP_UPDATE, _element(self.fd, _buffer(key), _buffer(value), flags))
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOENT):
                return False
            raise self._write_error(error) from error
        return True

    def delete(self, key: bytes) -> bool:
        """Delete an entry; return False if there is none."""
        try:
            call(MAP_DELETE, _element(self.fd, _buffer(key), None, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise self._write_error(error) from error
        return True

    def update_many(self, entries: Iterable[tuple[bytes, bytes]], flags: int = ANY) -> None:
        """Write entries in order. On an error those before the failing one are written."""
        entries = list(entries)
        if len(entries) < 4:
            for key, value in entries:
                self.update(key, value, flags)
            return
        keys = _buffer(b"".join([key for key, _ in entries]))
        values = _buffer(b"".join([value for _, value in entries]))
        attributes = self._batch(keys, values, len(entries), flags)
        try:
            call(MAP_UPDATE_BATCH, attributes)
        except OSError as error:
            if not _is_unsupported(error):
                raise self._write_error(error) from error
            for key, value in entries:
                self.update(key, value, flags)

    def delete_many(self, keys: list[bytes]) -> None:
        """Delete entries; those that do not exist are skipped."""
        done = 0
        while done < len(keys):
            rest = _buffer(b"".join(keys[done:]))
            attributes = self._batch(rest, None, len(keys) - done, 0)
            try:
                call(MAP_DELETE_BATCH, attributes)
                return
            except OSError as error:
                if _is_unsupported(error):
                    for key in keys:
                        self.delete(key)
                    return
                if error.errno != errno.ENOENT:
                    raise self._write_error(error) from error
            # The kernel stops at a key that does not exist; go on after it.
            done += _batch_count(attributes) + 1

    def replace(self, wanted: Mapping[bytes, bytes]) -> None:
        """Make ``wanted`` the entries of the map, additions first."""
        have = dict(self.items())
        self.update_many((key, value) for key, value in wanted.items() if have.get(key) != value)
        self.delete_many([key for key in have if key not in wanted])

    def batches(self, size: int = 1024) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all entries, at most ``size`` at a time.

        Entries written meanwhile may be missed; none comes twice unless it was deleted and written.
        """
        for block in self.blocks(size):
            yield list(
                zip(
                    _cut(block.keys, self.key_size, block.size),
                    _cut(block.values, self.value_size, block.size),
                    strict=True,
                )
            )

    def count(self) -> int:
        """Return the number of entries, at a tenth of the cost of :meth:`items`."""
        return sum(block.size for block in self.blocks(4096))

    def blocks(self, size: int = 1024) -> Iterator[Block]:
        """Yield all entries as :meth:`batches` does, for callers that do not need each one."""
        token = ctypes.create_string_buffer(max(4, self.key_size))
        first = True
        while True:
            keys = ctypes.create_string_buffer(size * self.key_size)
            values = ctypes.create_string_buffer(size * self.value_size)
            attributes = self._batch(
                keys, values, size, 0, 0 if first else _address(token), _address(token)
            )
            last = False
            try:
                call(MAP_LOOKUP_BATCH, attributes)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    # One bucket holds more entries than fit.
                    size *= 2
                    continue
                if _is_unsupported(error):
                    yield from self._single_entries()
                    return
                if error.errno != errno.ENOENT:
                    raise KernelError(f"map {self.name}: cannot read: {error.strerror}") from error
                last = True
            count = _batch_count(attributes)
            first = False
            if count:
                yield Block(
                    count,
                    ctypes.string_at(keys, count * self.key_size),
                    ctypes.string_at(values, count * self.value_size),
                )
            if last:
                return

    def _single_entries(self) -> Iterator[Block]:
        """Yield each entry as a block: before Linux 5.13 tries and per-CPU arrays have no batches.

        An entry that is deleted meanwhile may make all come again.
        """
        key: bytes | None = None
        following = ctypes.create_string_buffer(self.key_size)
        while True:
            before = None if key is None else _buffer(key)
            try:
                call(MAP_NEXT_KEY, _element(self.fd, before, following, 0))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                raise KernelError(f"map {self.name}: cannot read: {error.strerror}") from error
            key = following.raw
            value = self.lookup(key)
            if value is not None:
                yield Block(1, key, value)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield all entries."""
        for batch in self.batches():
            yield from batch

    def _batch(
        self,
        keys: ctypes.Array[ctypes.c_char],
        values: ctypes.Array[ctypes.c_char] | None,
        count: int,
        flags: int,
        token_in: int = 0,
        token_out: int = 0,
    ) -> ctypes.Array[ctypes.c_char]:
        packed = _buffer(
            struct.pack(
                "=QQQQIIQQ",
                token_in,
                token_out,
                _address(keys),
                _address(values) if values is not None else 0,
                count,
                self.fd,
                flags,
                0,
            )
        )
        packed.kept = (keys, values)  # type: ignore[attr-defined]  # see _element
        return packed

    def _write_error(self, error: OSError) -> KernelError:
        if error.errno == errno.ENOMEM:
            return MapFull(
                f"no memory for an entry of map {self.name}",
                "give the agent's pod more memory: the kernel charges the maps to it",
                self.name,
            )
        if error.errno in (errno.E2BIG, errno.ENOSPC):
            return MapFull(
                f"map {self.name} is full ({self.max_entries} entries)",
                f"enlarge it with {self.flag}" if self.flag else "",
                self.name,
            )
        return KernelError(f"map {self.name}: cannot write: {error.strerror}")


def _is_unsupported(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno == _NOT_SUPPORTED


def _element(
    fd: int,
    key: ctypes.Array[ctypes.c_char] | None,
    value: ctypes.Array[ctypes.c_char] | None,
    flags: int,
) -> ctypes.Array[ctypes.c_char]:
    addresses = [0 if buffer is None else _address(buffer) for buffer in (key, value)]
    packed = _buffer(struct.pack("=I4xQQQ", fd, *addresses, flags))
    # The packed form holds addresses only: keep the buffers they point to alive with it.
    packed.kept = (key, value)  # type: ignore[attr-defined]
    return packed


def _cut(data: bytes, size: int, count: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, size * count, size)]


def _batch_count(attributes: ctypes.Array[ctypes.c_char]) -> int:
    return int(struct.unpack_from("=I", attributes.raw, 32)[0])
