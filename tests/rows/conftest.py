"""Fixtures of the tests that watch a directory of manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.sources.manifests import Manifests
from tests.rows.watch import Begin, Watch


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
        begun.append(Watch(Manifests(directory, settle=settle)))
        return begun[-1]

    yield start
    for watch in begun:
        watch.end()
