"""One manifest file: what it held when it was last good, and how it is read again.

The text is not kept, only a digest of each document beside its objects, so that a later reading
parses the documents that changed and takes the others as they are. The records stay small, since a
directory may hold an object per file: a file of one document needs no digest at all.
"""

from __future__ import annotations

import os
import stat
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.model import ModelObject, ObjectError
from bpfsvc.sources import Problem, documents
from bpfsvc.sources.documents import Document, DocumentError, WrongCut
from bpfsvc.sources.yamltext import YamlError

_PROBLEMS_PER_FILE = 10

Part = ModelObject | tuple[ModelObject, ...]
"""The objects of one document; bare when there is one, as there nearly always is."""


class Unusable(Exception):
    """A file that cannot be used as it is now."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__(*map(str, problems))


class Stopped(Exception):
    """Asked to stop in the middle of a file; there may be ten thousand objects in it."""


class Contents:
    """What a good file holds: the objects of each of its documents."""

    __slots__ = ("_digests", "_parts")

    def __init__(self, parts: tuple[Part, ...] = (), digests: array[int] | None = None) -> None:
        self._parts = parts
        self._digests = digests

    def objects(self) -> Iterator[ModelObject]:
        """Go over the objects in the order they stand in."""
        for part in self._parts:
            if isinstance(part, tuple):
                yield from part
            else:
                yield part

    def places(self) -> Iterator[tuple[int, ModelObject]]:
        """Go over the objects with the numbers of their documents."""
        for number, part in enumerate(self._parts):
            for one in part if isinstance(part, tuple) else (part,):
                yield number, one

    def by_digest(self) -> dict[int, Part]:
        """Give the documents that need not be parsed again."""
        return dict(zip(self._digests, self._parts, strict=True)) if self._digests else {}


NOTHING = Contents()
"""A file that is empty, or that is not there."""


def parse(
    name: str, data: bytes, before: Contents = NOTHING, stop: threading.Event | None = None
) -> Contents:
    """Read the text of file ``name``; raises :class:`Unusable` with all that is wrong in it.

    ``before`` is what the file held: its documents that stand here unchanged are taken from there.
    """
    try:
        return _parse(name, data, before, stop, unfold=True)
    except WrongCut:
        return _parse(name, data, before, stop, unfold=False)


def _parse(
    name: str, data: bytes, before: Contents, stop: threading.Event | None, *, unfold: bool
) -> Contents:
    known = before.by_digest()
    digests = array("q")
    parts: list[Part] = []
    problems: list[Problem] = []
    for number, piece in enumerate(_split(name, data, unfold=unfold)):
        if stop is not None and stop.is_set():
            raise Stopped
        digest = piece.digest()
        digests.append(digest)
        part = known.get(digest)
        if part is None:
            try:
                found = documents.read(piece)
            except (ObjectError, YamlError) as error:
                pieces = list(_split(name, data, unfold=unfold))
                where = documents.explain(data, pieces, number, error)
                problems.append(Problem(name, where.line, where.reason))
                if len(problems) >= _PROBLEMS_PER_FILE:
                    break
                continue
            part = found[0] if len(found) == 1 else found
        parts.append(part)
    if problems:
        raise Unusable(tuple(problems))
    return Contents(tuple(parts), digests if len(parts) > 1 else None) if parts else NOTHING


def line_in(name: str, data: bytes, number: int) -> int:
    """Find the line of document ``number`` of a file; 0 if the file is no longer what it was."""
    try:
        pieces = list(_split(name, data, unfold=True))
        return documents.line_of(data, pieces, number) if number < len(pieces) else 0
    except Unusable:
        return 0


def _split(name: str, data: bytes, *, unfold: bool) -> Iterator[Document]:
    try:
        yield from documents.split(data, is_json=name.endswith(".json"), unfold=unfold)
    except DocumentError as error:
        raise Unusable((Problem(name, error.line, error.reason),)) from error


def load(directory: Path, name: str) -> tuple[bytes, os.stat_result]:
    """Read a file and what is known of it; raises :class:`Unusable`, or ``FileNotFoundError``.

    ``FileNotFoundError`` means that no such name exists; a link that leads nowhere is unusable.
    """
    path = directory / name
    try:
        # A pipe must not hold the agent up, neither here nor below.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        if path.is_symlink():
            raise Unusable((Problem(name, 0, "is a link that leads nowhere"),)) from None
        raise
    except OSError as error:
        raise Unusable((Problem(name, 0, f"cannot be read: {error.strerror}"),)) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unusable((Problem(name, 0, "is not a regular file"),))
        chunks = []
        while chunk := os.read(descriptor, status.st_size + 1):
            chunks.append(chunk)
    except OSError as error:
        raise Unusable((Problem(name, 0, f"cannot be read: {error.strerror}"),)) from error
    finally:
        os.close(descriptor)
    return b"".join(chunks) if len(chunks) > 1 else (chunks[0] if chunks else b""), status


def stamp(status: os.stat_result) -> int:
    """Give one number that changes when a file is written or replaced."""
    return hash((status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev))
