"""The body of a chunked response, all chunks that have arrived at a time.

``http.client`` returns one chunk for each call, and an API server sends one for each object or two
of a list that it streams: for ten thousand Services, these calls would take as long as decoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from typing import Any

_LINE_END = b"\r\n"
_LONGEST_LINE = 65536
_PIECE = 65536  # bytes


class BrokenOff(HTTPException):
    """The body ended too early, or is not in chunks."""

    def __init__(self) -> None:
        super().__init__("the connection broke off")


def body(response: Any) -> Iterator[bytes]:
    """Return the body of a response of urllib3 as it arrives, past urllib3 if it is in chunks."""
    raw = response._fp
    if not raw.chunked or response.headers.get("Content-Encoding"):
        yield from _reads(response)
        return
    yield from joined(_reads(raw.fp))
    # It was read to its end: the connection may be used again.
    raw.close()
    response.release_conn()


def _reads(stream: Any) -> Iterator[bytes]:
    return iter(partial(stream.read1, _PIECE), b"")


def joined(reads: Iterator[bytes]) -> Iterator[bytes]:
    """Return the data of the chunks (RFC 9112, section 7.1) in ``reads``, bytes as they arrive.

    Nothing is read behind the end of the body. Raises :class:`BrokenOff` if ``reads`` ends before.
    """
    data = b""
    left = 0  # bytes of the present chunk and of the line end behind it
    for read in reads:
        data += read
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if not left:
                end = data.find(_LINE_END, at)
                if end < 0:
                    break
                size = _size(data[at:end])
                at = end + len(_LINE_END)
                if not size:
                    if parts:
                        yield b"".join(parts)
                    _skip_trailer(data[at:], reads)
                    return
                left = size + len(_LINE_END)
            stop = min(at + left, len(data))
            left -= stop - at
            of_line_end = max(0, len(_LINE_END) - left)
            parts.append(data[at : max(at, stop - of_line_end)])
            at = stop
        data = data[at:]
        if len(data) > _LONGEST_LINE:
            raise BrokenOff
        if found := b"".join(parts):
            yield found
    raise BrokenOff


def _size(line: bytes) -> int:
    """Return the size that the line before a chunk says; behind it there may be extensions."""
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        size = -1
    if size < 0:
        raise BrokenOff
    return size


def _skip_trailer(data: bytes, reads: Iterator[bytes]) -> None:
    """Read the lines behind the last chunk, up to an empty one."""
    while not data.startswith(_LINE_END) and 2 * _LINE_END not in data:
        read = next(reads, b"")
        if not read or len(data) > _LONGEST_LINE:
            raise BrokenOff
        data += read
