"""A file of settings: which of its documents is which, and where each field of them stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.errors import UsageError
from bpfsvc.model import path_text
from bpfsvc.settings import own, shape, tree
from bpfsvc.settings.tree import Tree
from bpfsvc.sources import yamltext

_BLOCKS = {(shape.API_VERSION, shape.KIND), (own.API_VERSION, own.KIND)}
_IDENTITY = ("apiVersion", "kind")
_HINT = f"it holds a {shape.KIND}, and a {own.KIND} as a second document if need be"


class Block(NamedTuple):
    """One document of the file: its fields but for ``apiVersion`` and ``kind``."""

    fields: Mapping[str, Any]
    source: Tree | None = None
    file: str = ""

    def place(self, path: yamltext.Path) -> str:
        """Name a field with its line: ``config.conf:12: nftables.syncPeriod``."""
        if self.source is None:
            return path_text(path)
        if path[:1] not in self.source.lines:
            return f"{self.file}: {path_text(path)}"
        return f"{self.file}:{self.source.line(path)}: {path_text(path)}"


class File(NamedTuple):
    """What a file says. ``repeated`` names fields that stand twice; the last of them counts."""

    proxy: Block
    own: Block
    digest: str
    repeated: tuple[str, ...]


NOTHING = File(Block({}), Block({}), "", ())
"""In place of a file that was not given."""


def read(path: Path) -> File:
    """Read a file. Raises ``UsageError`` that names the file, and the line where there is one."""
    try:
        return parse(path.read_bytes(), path)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "name a readable file with --config"
        ) from error


def parse(data: bytes, path: Path) -> File:
    """Read the text of a file; otherwise as :func:`read`."""
    try:
        trees = tree.read(data)
    except tree.TreeError as error:
        raise UsageError(f"{path}:{error.line}: {error.reason}", "mend the YAML") from error
    blocks: dict[str, Block] = {}
    repeated: list[str] = []
    for each in trees:
        block = _block(each, str(path))
        kind = each.value["kind"]
        if kind in blocks:
            raise UsageError(f"{path}:{each.line(())}: a second {kind}", _HINT)
        blocks[kind] = block
        twice = [block.place(field) for field in each.repeated]
        if kind == own.KIND and twice:
            raise UsageError("; ".join(f"{place}: stands twice" for place in twice), _HINT)
        repeated += twice
    if not blocks:
        raise UsageError(f"{path}: no settings in it", _HINT)
    return File(
        blocks.get(shape.KIND, NOTHING.proxy),
        blocks.get(own.KIND, NOTHING.own),
        digest(data),
        tuple(repeated),
    )


def digest(data: bytes) -> str:
    """Identify the content of a file."""
    return hashlib.sha256(data).hexdigest()


def _block(source: Tree, file: str) -> Block:
    value = source.value
    if not isinstance(value, dict):
        raise UsageError(f"{file}:{source.line(())}: not an object", _HINT)
    identity = tuple(value.get(name) for name in _IDENTITY)
    if identity not in _BLOCKS:
        line = source.line((_IDENTITY[1],))
        said = ", ".join(
            f"{name} {found!r}" for name, found in zip(_IDENTITY, identity, strict=True) if found
        )
        raise UsageError(
            f"{file}:{line}: {said or 'a document without apiVersion and kind'}"
            f" is not {shape.API_VERSION} {shape.KIND}",
            _HINT,
        )
    fields = {name: found for name, found in value.items() if name not in _IDENTITY}
    return Block(fields, source, file)
