"""Archives whose bytes depend on their files alone: order, dates, owners and modes are fixed."""

from __future__ import annotations

import gzip
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

_EXECUTABLE = 0o100


def write_tar(target: Path, files: Iterable[tuple[str, Path]], seconds: int) -> None:
    """Write a tar file, compressed if its name ends so; ``files``: their names in it, and where."""
    if not target.name.endswith("gz"):
        with target.open("wb") as raw, tarfile.open(fileobj=raw, mode="w") as archive:
            _add(archive, files, seconds)
        return
    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=seconds) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        _add(archive, files, seconds)


def below(directory: Path, prefix: str = "") -> list[tuple[str, Path]]:
    """Return the files below a directory and the links in it, by their names behind a prefix."""
    return [
        (f"{prefix}{Path(at, name).relative_to(directory)}", Path(at, name))
        for at, _, names in os.walk(directory, followlinks=True)
        for name in names
    ]


def _add(archive: tarfile.TarFile, files: Iterable[tuple[str, Path]], seconds: int) -> None:
    for name, path in sorted(files):
        entry = tarfile.TarInfo(name)
        entry.size = path.stat().st_size
        entry.mtime = seconds
        entry.mode = 0o755 if path.stat().st_mode & _EXECUTABLE else 0o644
        entry.uname = entry.gname = "root"
        with path.open("rb") as content:
            archive.addfile(entry, content)
