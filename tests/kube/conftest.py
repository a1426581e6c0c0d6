"""API servers on this sandbox's loopback, and watched directories of manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.kube.manifests.directory import ManifestSource
from tests.apiserver.fixtures import api, certificates, tls_api
from tests.kube.watch import Begin, Watch

__all__ = ["api", "begin", "certificates", "directory", "tls_api"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start watches; end them with the test."""
    begun: list[Watch] = []

    def start(directory: Path, settle: float = 0.1) -> Watch:
        begun.append(Watch(ManifestSource(directory, settle=settle)))
        return begun[-1]

    yield start
    for watch in begun:
        watch.end()
