"""A map in the kernel: its entries, read and written by the bpf(2) system call.

bcc is a compiler and runs in a process of its own for a short time; its Python map calls are slow,
and its batch calls corrupt memory. The batches of this class read ten thousand entries at the cost
of ten calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import KernelError, MapFull
from bpfsvc.datapath import syscall

_NOT_SUPPORTED = 524
"""ENOTSUPP, which has no name outside of the kernel: this type of map lacks the operation."""
_PER_CPU_TYPES = {5, 6, 10}
"""BPF_MAP_TYPE_PERCPU_HASH, _PERCPU_ARRAY, _LRU_PERCPU_HASH."""


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
            "=IIIIII", syscall.info(fd, 24)
        )
        self.per_cpu = self.type in _PER_CPU_TYPES
        self.cpu_value_size = size + -size % 8
        self.value_size = self.cpu_value_size * syscall.possible_cpus() if self.per_cpu else size
        self._value = ctypes.create_string_buffer(self.value_size)

    @classmethod
    def pinned(cls, path: Path, flag: str = "") -> Map:
        """Open a pinned map, named after its file."""
        return cls(syscall.get(path), path.name, flag)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def lookup(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no such entry."""
        return self._read(syscall.MAP_LOOKUP, key)

    def take(self, key: bytes) -> bytes | None:
        """Delete an entry of a hash map, and return its last value; None if there is none.

        Before Linux 5.14 what programs write to the entry meanwhile may be missing in the value.
        """
        try:
            return self._read(syscall.MAP_LOOKUP_AND_DELETE, key)
        except KernelError as error:
            if not _is_unsupported(error.__cause__):
                raise
        value = self.lookup(key)
        return value if value is not None and self.delete(key) else None

    def _read(self, command: int, key: bytes) -> bytes | None:
        try:
            syscall.call(command, _element(self.fd, syscall.buffer_of(key), self._value, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise KernelError(f"map {self.name}: cannot read: {error.strerror}") from error
        return self._value.raw

    def update(self, key: bytes, value: bytes, flags: int = syscall.ANY) -> bool:
        """Write an entry; False if ``NOEXIST`` or ``EXIST`` forbids that."""
        try:
            syscall.call(
                syscall.MAP_UPDATE,
                _element(self.fd, syscall.buffer_of(key), syscall.buffer_of(value), flags),
            )
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOENT):
                return False
            raise self._write_error(error) from error
        return True

    def delete(self, key: bytes) -> bool:
        """Delete an entry; return False if there is none."""
        try:
            syscall.call(syscall.MAP_DELETE, _element(self.fd, syscall.buffer_of(key), None, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return False
            raise self._write_error(error) from error
        return True

    def update_many(self, entries: Iterable[tuple[bytes, bytes]], flags: int = syscall.ANY) -> None:
        """Write entries in order. On an error those before the failing one are written."""
        entries = list(entries)
        if len(entries) < 4:
            for key, value in entries:
                self.update(key, value, flags)
            return
        keys = syscall.buffer_of(b"".join([key for key, _ in entries]))
        values = syscall.buffer_of(b"".join([value for _, value in entries]))
        attributes = self._batch(keys, values, len(entries), flags)
        try:
            syscall.call(syscall.MAP_UPDATE_BATCH, attributes)
        except OSError as error:
            if not _is_unsupported(error):
                raise self._write_error(error) from error
            for key, value in entries:
                self.update(key, value, flags)

    def delete_many(self, keys: list[bytes]) -> None:
        """Delete entries; those that do not exist are skipped."""
        done = 0
        while done < len(keys):
            rest = syscall.buffer_of(b"".join(keys[done:]))
            attributes = self._batch(rest, None, len(keys) - done, 0)
            try:
                syscall.call(syscall.MAP_DELETE_BATCH, attributes)
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
                keys,
                values,
                size,
                0,
                0 if first else syscall.address_of(token),
                syscall.address_of(token),
            )
            last = False
            try:
                syscall.call(syscall.MAP_LOOKUP_BATCH, attributes)
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
            before = None if key is None else syscall.buffer_of(key)
            try:
                syscall.call(syscall.MAP_NEXT_KEY, _element(self.fd, before, following, 0))
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
        packed = syscall.buffer_of(
            struct.pack(
                "=QQQQIIQQ",
                token_in,
                token_out,
                syscall.address_of(keys),
                syscall.address_of(values) if values is not None else 0,
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
    addresses = [0 if buffer is None else syscall.address_of(buffer) for buffer in (key, value)]
    packed = syscall.buffer_of(struct.pack("=I4xQQQ", fd, *addresses, flags))
    # The packed form holds addresses only: keep the buffers they point to alive with it.
    packed.kept = (key, value)  # type: ignore[attr-defined]
    return packed


def _cut(data: bytes, size: int, count: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, size * count, size)]


def _batch_count(attributes: ctypes.Array[ctypes.c_char]) -> int:
    return int(struct.unpack_from("=I", attributes.raw, 32)[0])
