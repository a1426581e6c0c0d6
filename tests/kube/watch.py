"""Watches of a directory of manifests, and texts for its files."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bpfsvc.kube.manifests.directory import ManifestSource
from bpfsvc.kube.source import Batch
from bpfsvc.model import ObjectKey

PATIENCE = 10.0
LONG = 2 * PATIENCE
"""A settle time that no test reaches the end of."""


def node(name: str, zone: str = "z") -> str:
    labels = f"{{topology.kubernetes.io/zone: {zone}}}"
    return f"apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\n"


def key(name: str) -> ObjectKey:
    return ObjectKey("Node", "", name)


def replace(path: Path, text: str) -> None:
    """Write beside and rename, as careful programs do."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text)
    beside.rename(path)


class Watch:
    """A watch in a thread. ``state`` is what its batches add up to: name -> zone."""

    def __init__(self, source: ManifestSource) -> None:
        self.state: dict[str, str] = {}
        self.batches: list[Batch] = []
        self.stop = threading.Event()
        self._arrived: queue.Queue[Batch] = queue.Queue()
        self._batches = source.watch(self.stop)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._batches:
            self._arrived.put(batch)

    def next(self) -> Batch:
        batch = self._arrived.get(timeout=PATIENCE)
        self.batches.append(batch)
        for item in batch.puts:
            self.state[item.key.name] = getattr(item, "zone", "")
        for gone in batch.gone:
            del self.state[gone.name]
        return batch

    def until(self, holds: Callable[[Batch], bool]) -> Batch:
        """Return the first batch that fits; fail if none comes in time."""
        while True:
            batch = self.next()
            if holds(batch):
                return batch

    def until_state(self, **state: str) -> Batch:
        return self.until(lambda _: self.state == state)

    def end(self) -> float:
        """Stop; return the seconds that took."""
        started = time.monotonic()
        self.stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return time.monotonic() - started


class Begin(Protocol):
    def __call__(self, directory: Path, settle: float = ...) -> Watch: ...


def words(batch: Batch) -> list[str]:
    return [str(problem) for problem in batch.problems]
