"""A snapshot of the cluster's objects in a file, used when the API server is unreachable at boot.

A node that boots while the control plane is down has empty maps, and the API server itself may be
reachable only through a Service. The file is written under another name and renamed, so that it is
complete or absent; a checksum shows damage. The file is written after changes, at most once a
minute: an older file is good enough, since it is used only when there is nothing else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.private_file import open_private
from bpfsvc.base.trusted_files import distrust, read
from bpfsvc.model import ModelObject
from bpfsvc.model.archive import SHAPE, pack_objects, unpack_objects

_log = logging.getLogger("bpfsvc")

_FORMAT = 1
_OBJECTS_PER_FRAME = 50
"""Objects packed in one step; the agent's loop can run between two steps."""

_PAUSE = 0.001

_LARGEST = 1 << 30
"""Bytes of a file that is read; 10,000 Services of four endpoints are some ten million."""


class Snapshot(NamedTuple):
    """The objects that were saved, and when, in Unix seconds."""

    objects: tuple[ModelObject, ...]
    saved: float


class SnapshotFile:
    """The file, and a thread that writes it."""

    def __init__(
        self, path: Path, node_name: str, *, settle: float = 5.0, spacing: float = 60.0
    ) -> None:
        """A change is written ``settle`` seconds after it, ``spacing`` after the last one."""
        self._path = path
        self._node_name = node_name
        self._settle = settle
        self._spacing = spacing
        self._due: float | None = None
        self._earliest = 0.0
        self._writer: threading.Thread | None = None
        self._logged = ""
        self._without_pauses = threading.Event()

    # -- writing --

    def changed(self) -> None:
        """Note that the objects differ from the file."""
        if self._due is None:
            self._due = max(time.monotonic() + self._settle, self._earliest)

    @property
    def is_due(self) -> bool:
        """True if it is time for :meth:`save`."""
        busy = self._writer is not None and self._writer.is_alive()
        return self._due is not None and not busy and time.monotonic() >= self._due

    def save(self, objects: Sequence[ModelObject]) -> None:
        """Write all objects in a thread; a failure is logged once."""
        self._due = None
        self._earliest = time.monotonic() + self._spacing
        self._writer = threading.Thread(
            target=self._save, args=(objects,), name="snapshot", daemon=True
        )
        self._writer.start()

    def wait(self) -> None:
        """Wait for the end of a write that is going on."""
        if self._writer is not None:
            self._writer.join()

    def finish(self, objects: Sequence[ModelObject]) -> None:
        """Write what was not written yet, without pauses. The last call of all."""
        self._without_pauses.set()
        self.wait()
        if self._due is not None:
            self._save(objects)

    def _save(self, objects: Sequence[ModelObject]) -> None:
        try:
            self._write(objects)
        except OSError as error:
            text = f"the snapshot {self._path} cannot be written: {error.strerror}"
            if text != self._logged:
                _log.warning("%s; after a boot without the API server no Service works", text)
            self._logged = text
        else:
            self._logged = ""

    def _write(self, objects: Sequence[ModelObject]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._path.with_name(self._path.name + ".new")
        digest = hashlib.sha256()
        with open(fresh, "wb", opener=open_private) as file:
            head = {
                "format": _FORMAT,
                "shape": SHAPE,
                "node": self._node_name,
                "saved": time.time(),
            }
            for part in chain([json.dumps(head).encode() + b"\n"], _frames(objects)):
                file.write(part)
                digest.update(part)
                self._without_pauses.wait(_PAUSE)
            file.write(bytes(4) + digest.digest())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    # -- reading --

    def load(self) -> Snapshot | None:
        """Return the file's content; ``None``, with the reason in the log, if it is unusable."""
        try:
            path = self._path.resolve()
            reason = distrust(path.parent)
            data = b"" if reason else read(path, _LARGEST)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("the snapshot %s cannot be read: %s", self._path, error.strerror)
            return None
        except ValueError as error:
            reason = f"it {error}"
        if reason:
            _log.warning("the snapshot %s is not used: %s", self._path, reason)
            return None
        try:
            return self._read(data)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("the snapshot %s cannot be used: %s", self._path, error)
            return None

    def _read(self, data: bytes) -> Snapshot:
        end = data.index(b"\n") + 1
        head = json.loads(data[:end])
        if (head["format"], head["shape"]) != (_FORMAT, SHAPE):
            raise ValueError("another version of bpfsvc wrote the file")
        if head["node"] != self._node_name:
            raise ValueError(f"the file is of node {head['node']}")
        if hashlib.sha256(data[:-36]).digest() != data[-32:] or data[-36:-32] != bytes(4):
            raise ValueError("the file is damaged")
        objects: list[ModelObject] = []
        while size := int.from_bytes(data[end : end + 4], "big"):
            end += 4
            objects += unpack_objects(data[end : end + size])
            end += size
        return Snapshot(tuple(objects), float(head["saved"]))


def _frames(objects: Sequence[ModelObject]) -> Iterator[bytes]:
    left = iter(objects)
    while some := tuple(islice(left, _OBJECTS_PER_FRAME)):
        data = pack_objects(some)
        yield len(data).to_bytes(4, "big") + data
