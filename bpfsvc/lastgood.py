"""The last good picture of the cluster, kept in a file for a boot without the API server.

A node that comes up while the control plane is down has empty maps and nobody to ask, and what it
would need to reach the API server may itself be behind a Service. The file is written beside its
place and renamed into it, so that it is whole or not there; a checksum tells the rest. It is
written when things have changed, but seldom: it need not be the newest, for it is only used where
there is nothing else.
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

from bpfsvc.model import ModelObject
from bpfsvc.model.archive import SHAPE, pack_objects, unpack_objects

_log = logging.getLogger("bpfsvc")

_FORMAT = 1
_AT_ONCE = 50
"""Objects packed at one go: the loop of the agent is not held up for longer."""

_PAUSE = 0.001


class Picture(NamedTuple):
    """What was saved, and when, in Unix seconds."""

    objects: tuple[ModelObject, ...]
    saved: float


class LastGood:
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
        self._complaint = ""
        self._hurry = threading.Event()

    # -- writing --

    def changed(self) -> None:
        """Note that what is known is not what was saved."""
        if self._due is None:
            self._due = max(time.monotonic() + self._settle, self._earliest)

    @property
    def is_due(self) -> bool:
        """Whether it is time for :meth:`save`."""
        busy = self._writer is not None and self._writer.is_alive()
        return self._due is not None and not busy and time.monotonic() >= self._due

    def save(self, objects: Sequence[ModelObject]) -> None:
        """Write all objects soon, in a thread of its own; failing is logged once."""
        self._due = None
        self._earliest = time.monotonic() + self._spacing
        self._writer = threading.Thread(
            target=self._save, args=(objects,), name="last good", daemon=True
        )
        self._writer.start()

    def wait(self) -> None:
        """Wait for the end of a write that is going on."""
        if self._writer is not None:
            self._writer.join()

    def finish(self, objects: Sequence[ModelObject]) -> None:
        """Write what was not written yet, without regard to others. The last call of all."""
        self._hurry.set()
        self.wait()
        if self._due is not None:
            self._save(objects)

    def _save(self, objects: Sequence[ModelObject]) -> None:
        try:
            self._write(objects)
        except OSError as error:
            text = f"the last good state cannot be saved at {self._path}: {error.strerror}"
            if text != self._complaint:
                _log.warning("%s; after a boot without the API server, nothing is served", text)
            self._complaint = text
        else:
            self._complaint = ""

    def _write(self, objects: Sequence[ModelObject]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._path.with_name(self._path.name + ".new")
        digest = hashlib.sha256()
        with open(fresh, "wb", opener=_private) as file:
            head = {
                "format": _FORMAT,
                "shape": SHAPE,
                "node": self._node_name,
                "saved": time.time(),
            }
            for part in chain([json.dumps(head).encode() + b"\n"], _frames(objects)):
                file.write(part)
                digest.update(part)
                self._hurry.wait(_PAUSE)
            file.write(bytes(4) + digest.digest())
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)

    # -- reading --

    def load(self) -> Picture | None:
        """Read the file; None, and why in the log, if there is none or it cannot be used."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("the last good state %s cannot be read: %s", self._path, error.strerror)
            return None
        try:
            return self._read(data)
        except (ValueError, KeyError, TypeError) as error:
            _log.warning("the last good state %s cannot be used: %s", self._path, error)
            return None

    def _read(self, data: bytes) -> Picture:
        end = data.index(b"\n") + 1
        head = json.loads(data[:end])
        if (head["format"], head["shape"]) != (_FORMAT, SHAPE):
            raise ValueError("another version of bpfsvc wrote it")
        if head["node"] != self._node_name:
            raise ValueError(f"it is of node {head['node']}")
        if hashlib.sha256(data[:-36]).digest() != data[-32:] or data[-36:-32] != bytes(4):
            raise ValueError("it is damaged")
        objects: list[ModelObject] = []
        while size := int.from_bytes(data[end : end + 4], "big"):
            end += 4
            objects += unpack_objects(data[end : end + size])
            end += size
        return Picture(tuple(objects), float(head["saved"]))


def _frames(objects: Sequence[ModelObject]) -> Iterator[bytes]:
    left = iter(objects)
    while some := tuple(islice(left, _AT_ONCE)):
        data = pack_objects(some)
        yield len(data).to_bytes(4, "big") + data


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
