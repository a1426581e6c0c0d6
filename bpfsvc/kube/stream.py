"""Bytes as they arrive from the network, cut into lines of a watch and items of a list.

A list of ten thousand objects may come as one answer of thirty megabytes. It is cut while it
arrives, so that no more than one piece and one object of it are ever held as text. API servers
write compact JSON and begin every object with its metadata, so ``},{"metadata":{`` separates two
items. Inside a string the quotes would be escaped, and no kind that is read here has objects
inside. A list in another format is kept to its end and then parsed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.kube import decoding
from bpfsvc.kube.decoding import Head
from bpfsvc.kube.errors import Unreachable

_BEGIN = b'"items":['
_FIRST = b'{"metadata":{'
_BETWEEN = b"}," + _FIRST
_LONGEST_HEAD = 65536


def lines(pieces: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Return the lines that each piece completes; an incomplete last line is left out."""
    started: list[bytes] = []
    for piece in pieces:
        complete, newline, rest = piece.rpartition(b"\n")
        if newline:
            if started:
                complete = b"".join((*started, complete))
                started.clear()
            whole = [line for line in complete.split(b"\n") if line.strip()]
            if whole:
                yield whole
        if rest:
            started.append(rest)


class List:
    """The answer to a list: its items one by one, and its head."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._head: Head | None = None

    @property
    def head(self) -> Head:
        """The fields beside the items; known once the first item, or the end, was read."""
        assert self._head is not None, "the items come first"
        return self._head

    def items(self) -> Iterator[bytes]:
        """Return the text of each item.

        Raises :class:`Unreachable` if the answer is no list or not complete.
        """
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
        """Read until the items begin; return the text before, the begin itself, the text after."""
        text = b""
        for piece in self._pieces:
            text += piece
            if _BEGIN in text or len(text) > _LONGEST_HEAD:
                break
        return text.partition(_BEGIN)

    def _parsed(self, text: bytes) -> Iterator[bytes]:
        self._head, items = decoding.whole_list(text)
        yield from map(bytes, items)
