"""A ring of bytes that programs fill and this process empties (``BPF_MAP_TYPE_RINGBUF``).

The kernel shares three areas of memory: the position of the consumer, which is written here, the
position of the producers, and the bytes, which are there twice in a row, so that a record at the
end of the ring is read in one piece. A record begins with its length; two bits of the length say
that it is not finished, or that it is void (``Documentation/bpf/ringbuf.rst`` of Linux).
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

_BUSY, _DISCARDED = 1 << 31, 1 << 30
_HEADER = 8
_LENGTH, _POSITION = struct.Struct("=I"), struct.Struct("=Q")


class RingBuffer:
    """Reads the ring behind a descriptor; one thread at a time."""

    def __init__(self, fd: int, size: int) -> None:
        """``size``: of the ring in bytes. Raises ``OSError`` if the memory cannot be mapped."""
        page = mmap.PAGESIZE
        self._size = size
        self._consumer = mmap.mmap(fd, page, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        self._produced = mmap.mmap(fd, page + 2 * size, prot=mmap.PROT_READ, offset=page)
        self._data = page
        (self._position,) = _POSITION.unpack_from(self._consumer)

    def read(self, most: int) -> Iterator[bytes]:
        """Yield records that are finished, in order, at most so many; then they are removed.

        The room is free again when the iterator ends.
        """
        (end,) = _POSITION.unpack_from(self._produced)
        at = self._position
        for _ in range(most):
            if at >= end:
                break
            offset = self._data + (at & (self._size - 1))
            (length,) = _LENGTH.unpack_from(self._produced, offset)
            if length & _BUSY:
                break
            discarded, length = length & _DISCARDED, length & ~_DISCARDED
            if not discarded:
                yield self._produced[offset + _HEADER : offset + _HEADER + length]
            at += _HEADER + length + -length % 8
        self._position = at
        _POSITION.pack_into(self._consumer, 0, at)

    def skip(self) -> None:
        """Remove everything that is finished."""
        for _ in self.read(self._size):
            pass

    def close(self) -> None:
        """Give the memory back."""
        self._consumer.close()
        self._produced.close()
