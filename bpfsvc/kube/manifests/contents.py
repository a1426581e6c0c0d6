"""What a file of manifests holds: its objects, document by document.

The text of a file is not kept, only a digest of each document beside its objects, so that the next
reading parses only the documents that changed.
"""

from __future__ import annotations

import os
import stat
import threading
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from bpfsvc.kube.manifests import documents
from bpfsvc.kube.manifests.documents import Document, DocumentError, WrongCut
from bpfsvc.kube.source import ParseError
from bpfsvc.model import ModelObject

_PROBLEMS_PER_FILE = 10
_PIECE = 4096  # bytes


class Unusable(Exception):
    """A file that cannot be used as it is now."""

    def __init__(self, problems: tuple[ParseError, ...]) -> None:
        self.problems = problems
        super().__init__(*map(str, problems))


class Stopped(Exception):
    """Asked to stop in the middle of a file, which may hold ten thousand objects."""


class Contents:
    """The objects of each document of a good file, and the digests of several documents."""

    __slots__ = ("_digests", "documents")

    def __init__(
        self, found: tuple[tuple[ModelObject, ...], ...] = (), digests: Sequence[int] = ()
    ) -> None:
        self.documents = found
        self._digests = digests if len(found) > 1 else ()

    def objects(self) -> Iterator[ModelObject]:
        """Return the objects in the order of the file."""
        return chain.from_iterable(self.documents)

    def by_digest(self) -> dict[int, tuple[ModelObject, ...]]:
        """Return the documents that need not be parsed again."""
        return dict(zip(self._digests, self.documents, strict=False))


NOTHING = Contents()
"""A file that is empty or absent."""


def parse(
    name: str, data: bytes, before: Contents = NOTHING, stop: threading.Event | None = None
) -> Contents:
    """Read the text of file ``name``; raises :class:`Unusable` with all that is wrong in it.

    ``before`` is what the file held: documents that did not change are taken from there.
    """
    try:
        return _parse(name, data, before, stop, cut_lists=True)
    except WrongCut:
        return _parse(name, data, before, stop, cut_lists=False)


def _parse(
    name: str, data: bytes, before: Contents, stop: threading.Event | None, *, cut_lists: bool
) -> Contents:
    known = before.by_digest()
    digests = array("q")
    found: list[tuple[ModelObject, ...]] = []
    problems: list[ParseError] = []
    for document in split(name, data, cut_lists=cut_lists):
        if stop is not None and stop.is_set():
            raise Stopped
        digest = document.digest()
        digests.append(digest)
        try:
            found.append(known[digest] if digest in known else documents.read(document, data))
        except DocumentError as error:
            problems.append(ParseError(name, error.line, error.reason))
            if len(problems) == _PROBLEMS_PER_FILE:
                break
    if problems:
        raise Unusable(tuple(problems))
    return Contents(tuple(found), digests) if found else NOTHING


def split(name: str, data: bytes, *, cut_lists: bool = True) -> Iterator[Document]:
    """Yield the documents of a text; raises :class:`Unusable` if it cannot be cut into them."""
    try:
        yield from documents.split(data, is_json=name.endswith(".json"), cut_lists=cut_lists)
    except DocumentError as error:
        raise Unusable((ParseError(name, error.line, error.reason),)) from error


def load(directory: Path, name: str) -> tuple[bytes, os.stat_result]:
    """Read a file and its status.

    Raises ``FileNotFoundError`` if there is no such name, :class:`Unusable` if it cannot be read.
    """
    path = f"{directory}/{name}"
    try:
        # A pipe must not block the agent. No file object: there may be twenty thousand files.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _unusable(name, "is not a regular file")
            size = max(status.st_size + 1, _PIECE)  # some file systems do not know it
            return b"".join(iter(partial(os.read, descriptor, size), b"")), status
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        if os.path.islink(path):  # noqa: PTH114
            raise _unusable(name, "is a link to a file that does not exist") from None
        raise
    except OSError as error:
        raise _unusable(name, f"cannot be read: {error.strerror}") from error


def _unusable(name: str, reason: str) -> Unusable:
    return Unusable((ParseError(name, 0, reason),))
