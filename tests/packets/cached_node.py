"""A node that loads its programs from a file: builds are in a directory, as on a real node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from bpfsvc.datapath.loader.bytecode_cache import BytecodeCache
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.installation import install
from bpfsvc.datapath.loader.source import CSource, load
from bpfsvc.devtools.lab import sandbox
from tests.packets.node import SIZES, Node

SOURCE = load(SIZES)
OLDER = load(replace(SIZES, max_connections=8192))


def never(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("the compiler was started")


class CachedNode(Node):
    """A node that looks for its builds in a directory."""

    def __init__(self, directory: Path, cache: Path, source: CSource = SOURCE) -> None:
        self.cache = cache
        super().__init__(directory, source)

    def load(self, source: CSource) -> None:
        self._use(install(self.root, source, print, self.cache))


def put(cache: Path, source: CSource, data: bytes) -> Path:
    """Write a file into a directory as the agent does; return its path."""
    BytecodeCache(cache, source.code_digest, print).write(data)
    return cache / f"{source.code_digest}.bytecode"


@pytest.fixture(scope="session")
def compiled() -> bytes:
    """The bytecode of the sources, compiled once for all tests of a run."""
    sandbox.require()
    file = sandbox.COMPILED / f"{SOURCE.code_digest}.bytecode"
    if not file.exists():
        put(sandbox.COMPILED, SOURCE, compile_source(SOURCE))
    return file.read_bytes()
