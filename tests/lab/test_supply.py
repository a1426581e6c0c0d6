"""The marks of a lab's directory of manifests: what a mark says of the changes before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bpfsvc.base.address import pack
from bpfsvc.devtools.lab import objects
from bpfsvc.devtools.lab.supply import MARK, Files
from bpfsvc.kube.manifests.directory import ManifestSource
from bpfsvc.kube.source import Batch
from bpfsvc.model import Service
from tests.kube.watch import Watch

ROUNDS = 20


@pytest.mark.parametrize("loss", ["a removed file", "a file with an object fewer"])
def test_the_second_mark_comes_after_a_loss(tmp_path: Path, loss: str) -> None:
    """``LabCluster.settle`` relies on it. Several rounds, as it is a matter of milliseconds."""
    files = Files(tmp_path)
    names = [f"web-{number:02}" for number in range(ROUNDS)]
    for name in names:
        files.put(name, objects.service(name, ()), objects.service(f"{name}-rest", ()))
    watch = Watch(ManifestSource(files.directory))
    try:
        watch.next()
        for number, name in enumerate(names):
            if loss == "a removed file":
                files.drop(name)
            else:
                files.put(name, objects.service(f"{name}-rest", ()))
            for mark in (2 * number + 1, 2 * number + 2):
                files.mark(mark)
                watch.until(lambda batch, mark=mark: has_mark(batch, mark))  # type: ignore[misc]
            assert name not in watch.state
    finally:
        watch.end()


def has_mark(batch: Batch, number: int) -> bool:
    return any(
        isinstance(item, Service)
        and pack(MARK) in item.cluster_ips
        and number in {port.number for port in item.ports}
        for item in batch.puts
    )
