"""Bytes as they arrive from the network, cut into lines of a watch and items of a list.

A list of ten thousand objects may come as one answer of thirty megabytes. It is cut while it
arrives, so that no more than one piece and one object of it are ever held as text. API servers
write compact JSON and begin every object with its metadata, so ``},{"metadata":{`` stands between
two items. Inside a text its quotes would be escaped, and no kind that is read here has objects
inside. Whatever is written otherwise is kept to its end and taken apart by a parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.apiserver import decoding
from bpfsvc.apiserver.decoding import Head
from bpfsvc.apiserver.trouble import Unreachable

_BEGIN = b'"items":['
_FIRST = b'{"metadata":{'
_BETWEEN = b"}," + _FIRST
_LONGEST_HEAD = 65536


def lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Give the lines that each piece completes; what the stream broke off in is left out."""
    started: list[bytes] = []
    for piece in pieces:
        complete, newline, rest = piece.rpartition(b"\n")
        if newline:
            if started:
                complete = b"".join((*started, complete))
                started.clear()
            found = [line for line in complete.split(b"\n") if line.strip()]
            if found:
                yield found
        if rest:
            started.append(rest)


class List:
    """The answer to a list: its items one by one, and what it says of itself."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._head: Head | None = None

    @property
    def head(self) -> Head:
        """What the list says of itself; known once there is an item, or the end of them."""
        assert self._head is not None, "asked before the items"
        return self._head

    def items(self) -> Iterator[bytes]:
        """Give the text of each item; :class:`Unreachable` if it is no list, or not all of it."""
        before, begin, rest = self._begin()
        self._head = decoding.head(before + begin + b"]}")
        if self._head is None:
            yield from self._parsed(b"".join((before, begin, rest, *self._pieces)))
            return
        was_cut = False
        for piece in self._pieces:
            *complete, rest = (rest + piece).split(_BETWEEN)
            if complete:
                was_cut = True
                rest = _FIRST + rest
                yield complete[0] + b"}"
                for item in complete[1:]:
                    yield _FIRST + item + b"}"
        if not was_cut:
            yield from self._parsed(before + begin + rest)
            return
        last = rest.rstrip()
        if not last.endswith(b"}]}"):
            raise Unreachable("the answer to a list broke off")
        yield last[:-2]

    def _begin(self) -> tuple[bytes, bytes, bytes]:
        """Read until the items begin; cut what was read there, if there is such a place."""
        text = b""
        for piece in self._pieces:
            text += piece
            if _BEGIN in text or len(text) > _LONGEST_HEAD:
                break
        return text.partition(_BEGIN)

    def _parsed(self, text: bytes) -> Iterator[bytes]:
        self._head, items = decoding.whole_list(text)
        yield from map(bytes, items)
