"""The archive: parts in a tar file, compressed, and a manifest that comes last.

An archive without its manifest was cut short. Each part is a text, often of one JSON object in each
line, so that a part that is too large can lose lines and still be read.
"""

from __future__ import annotations

import io
import json
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from bpfsvc import __version__
from bpfsvc.base.errors import UsageError

FORMAT = 1
"""Grows when older versions of this package cannot read the archive."""

_KIND = "bpfsvc-sysdump"
_MANIFEST = "manifest.json"
_PART_SHARE = 2
"""A part may have this share of the room that is left: its half."""

_MANIFEST_BYTES = 4096
_HEADER_BYTES = 128
"""Of the manifest and of the header of a part, compressed."""

_UNCOUNTED = 4096
"""Bytes of lines, not compressed, that wait to be counted."""


class PartResult(NamedTuple):
    """What became of a part: ``ok``, ``cut`` or ``failed``, and a line about it."""

    name: str
    result: str
    note: str = ""


class _Lines:
    """The lines of a part, as many as there is room for when they are compressed."""

    def __init__(self, room: int) -> None:
        self.data = io.BytesIO()
        self.count = self.size = 0
        """How many lines have room, and how many bytes they take."""
        self._room = room
        self._end = self._added = self._compressed = 0
        self._compressor = zlib.compressobj()

    def add(self, line: str) -> bool:
        """Add a line; return False if there is no room for the last lines."""
        encoded = line.encode(errors="replace")
        self.data.write(encoded)
        self._added += 1
        self._compressed += len(self._compressor.compress(encoded))
        # What is inside the compressor is not counted before it is flushed.
        return self.data.tell() - self._end < _UNCOUNTED or self._has_room(zlib.Z_SYNC_FLUSH)

    def end(self) -> bool:
        """Add no more lines; return the same."""
        return self._has_room(zlib.Z_FINISH)

    def _has_room(self, mode: int) -> bool:
        self._compressed += len(self._compressor.flush(mode))
        if self._compressed > self._room:
            self.data.truncate(self._end)
            return False
        self._end, self.count, self.size = self.data.tell(), self._added, self._compressed
        return True


class ArchiveWriter:
    """Writes an archive of at most so many bytes to a stream."""

    def __init__(self, stream: IO[bytes], node: str, max_bytes: int) -> None:
        self._tar = tarfile.open(fileobj=stream, mode="w|gz")  # noqa: SIM115  finish() closes it
        self._now = time.time()
        self._node = node
        self._left = max_bytes - _MANIFEST_BYTES
        self.results: list[PartResult] = []

    def add(self, name: str, lines: Iterable[str], *, whole: bool = False) -> None:
        """Add a part of lines, as many as there is room for. ``whole``: all of them, or none."""
        part = _Lines(self._left // _PART_SHARE - _HEADER_BYTES)
        is_cut = not (all(map(part.add, lines)) and part.end())
        if is_cut and whole:
            self.failed(name, "left out: larger than what --max-size leaves")
            return
        self._left -= part.size + _HEADER_BYTES
        self._write(name, part.data)
        note = f"cut after {part.count} lines: larger than what --max-size leaves" if is_cut else ""
        self.results.append(PartResult(name, "cut" if is_cut else "ok", note))

    def failed(self, name: str, note: str) -> None:
        """Note that a part is not there, and why."""
        self.results.append(PartResult(name, "failed", " ".join(note.split())))

    def finish(self, **more: Any) -> None:
        """Write the manifest; ``more`` goes into it."""
        manifest = {
            "kind": _KIND,
            "format": FORMAT,
            "version": __version__,
            "node": self._node,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now)),
            **more,
            "parts": [result._asdict() for result in self.results],
        }
        text = json.dumps(manifest, indent=2) + "\n"
        self._write(_MANIFEST, io.BytesIO(text.encode()))
        self._tar.close()

    def _write(self, name: str, data: io.BytesIO) -> None:
        info = tarfile.TarInfo(f"{_KIND}/{name}")
        info.size, info.mtime, info.mode = data.seek(0, io.SEEK_END), int(self._now), 0o600
        data.seek(0)
        self._tar.addfile(info, data)


class Archive:
    """An archive that was read: its manifest, and its parts by name."""

    def __init__(self, path: Path, manifest: dict[str, Any], parts: dict[str, str]) -> None:
        self.path = path
        self.manifest = manifest
        self._parts = parts

    @property
    def node(self) -> str:
        """The name of the node."""
        return str(self.manifest["node"])

    def has(self, name: str) -> bool:
        """True if a part is there."""
        return name in self._parts

    def text(self, name: str) -> str:
        """Return a part; raise :class:`UsageError` that says why it is not there."""
        if name in self._parts:
            return self._parts[name]
        results = (PartResult(**part) for part in self.manifest["parts"])
        notes = [result.note for result in results if result.name == name and result.note]
        raise UsageError(
            f"{self.path} has no {name}: {notes[0] if notes else 'it was not recorded'}",
            "make another one on the node: bpfsvc sysdump",
        )

    def json(self, name: str) -> Any:
        """Return a part that is a JSON value."""
        text = self.text(name)
        with damage(self.path):
            return json.loads(text)

    def json_lines(self, name: str) -> Iterator[Any]:
        """Yield the JSON values of a part, one in each line."""
        for line in self.text(name).splitlines():
            with damage(self.path):
                yield json.loads(line)

    def cut(self) -> Iterator[str]:
        """Yield a line about each part that is not whole."""
        for part in (PartResult(**part) for part in self.manifest["parts"]):
            if part.result == "cut":
                yield f"{part.name} is {part.note}"


@contextmanager
def damage(path: Path) -> Iterator[None]:
    """Turn an error about the form of what was read from an archive into one that says so."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} is damaged ({type(error).__name__}: {error})",
            "make another one on the node: bpfsvc sysdump",
        ) from error


def read_archive(path: Path) -> Archive:
    """Read an archive; raise :class:`UsageError` for any other file, or a part of one."""
    texts: dict[str, str] = {}
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content:
                    name = member.name.removeprefix(f"{_KIND}/")
                    texts[name] = content.read().decode(errors="replace")
            _read_rest(tar)
    except (EOFError, zlib.error, tarfile.ReadError) as error:
        if not texts and not isinstance(error, EOFError):
            raise _foreign(path) from error
        raise _short(path) from error
    except OSError as error:
        if error.errno is None:  # gzip.BadGzipFile
            raise _foreign(path) from error
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a sysdump") from error
    if _MANIFEST not in texts:
        raise _short(path) if _is_ours(texts) else _foreign(path)
    with damage(path):
        manifest = json.loads(texts.pop(_MANIFEST))
        kind, number = manifest["kind"], int(manifest["format"])
    if kind != _KIND:
        raise _foreign(path)
    if number > FORMAT:
        raise UsageError(
            f"{path} has format {number}, and this version of bpfsvc reads up to {FORMAT}",
            f"read it with bpfsvc {manifest.get('version', 'of a newer version')}",
        )
    return Archive(path, manifest, texts)


def _read_rest(tar: tarfile.TarFile) -> None:
    """Read what is behind the last part: the checksum of all is there."""
    while tar.fileobj and tar.fileobj.read(1 << 16):
        pass


def _is_ours(texts: dict[str, str]) -> bool:
    return any("/" not in name or name.startswith("maps/") for name in texts)


def _foreign(path: Path) -> UsageError:
    return UsageError(f"{path} is no sysdump", "make one on the node: bpfsvc sysdump")


def _short(path: Path) -> UsageError:
    return UsageError(
        f"{path} is cut short: its end is missing", "copy it again, or make another one"
    )
