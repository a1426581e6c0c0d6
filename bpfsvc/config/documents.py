"""A configuration file: which of its documents is which, and the line of each field."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.base import yaml_documents
from bpfsvc.base.errors import UsageError
from bpfsvc.base.yaml_documents import Document, FieldPath, YamlError
from bpfsvc.config import bpfsvc_v1alpha1, kubeproxy_v1alpha1
from bpfsvc.model import path_text

_DOCUMENTS = {
    (kubeproxy_v1alpha1.API_VERSION, kubeproxy_v1alpha1.KIND),
    (bpfsvc_v1alpha1.API_VERSION, bpfsvc_v1alpha1.KIND),
}
_IDENTITY = ("apiVersion", "kind")
_HINT = (
    f"the file holds a {kubeproxy_v1alpha1.KIND} and, optionally, a {bpfsvc_v1alpha1.KIND}"
    " as a second document"
)


class FileDocument(NamedTuple):
    """One document of the file: its fields without ``apiVersion`` and ``kind``."""

    fields: Mapping[str, Any]
    yaml: Document | None = None
    file: str = ""

    def place(self, path: FieldPath) -> str:
        """Return the name of a field with its line: ``config.conf:12: nftables.syncPeriod``."""
        if self.yaml is None:
            return path_text(path)
        if path and path[0] not in self.yaml.value:
            return f"{self.file}: {path_text(path)}"
        return f"{self.file}:{self.yaml.line(path)}: {path_text(path)}"


class File(NamedTuple):
    """The documents of a file. ``repeated``: fields that are given twice; the last one counts."""

    kubeproxy: FileDocument
    bpfsvc: FileDocument
    digest: str
    repeated: tuple[str, ...]


NOTHING = File(FileDocument({}), FileDocument({}), "", ())
"""Used when no file was given."""


def of_agent(plain: Mapping[str, Mapping[str, Any]]) -> File:
    """Return the documents that an agent says it has, by the group of their API."""
    kubeproxy, bpfsvc = (
        FileDocument(
            {
                name: value
                for name, value in plain.get(version.partition("/")[0], {}).items()
                if name not in _IDENTITY
            }
        )
        for version in (kubeproxy_v1alpha1.API_VERSION, bpfsvc_v1alpha1.API_VERSION)
    )
    return File(kubeproxy, bpfsvc, "", ())


def read(path: Path) -> File:
    """Read a file. Raises ``UsageError`` that names the file, and the line where there is one."""
    try:
        return parse(path.read_bytes(), path)
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", "name a readable file with --config"
        ) from error


def parse(data: bytes, path: Path) -> File:
    """Read the content of a file. Raises ``UsageError`` as :func:`read` does."""
    try:
        parsed = list(yaml_documents.read(data, last_wins=True))
    except YamlError as error:
        raise UsageError(f"{path}:{error.line}: {error.reason}", "fix the YAML") from error
    documents: dict[str, FileDocument] = {}
    repeated: list[str] = []
    for source in parsed:
        document = _document(source, str(path))
        kind = source.value["kind"]
        if kind in documents:
            raise UsageError(f"{path}:{source.line()}: a second {kind}", _HINT)
        documents[kind] = document
        repeats = [document.place(field) for field in source.repeated]
        if kind == bpfsvc_v1alpha1.KIND and repeats:
            raise UsageError("; ".join(f"{location}: given twice" for location in repeats), _HINT)
        repeated += repeats
    if not documents:
        raise UsageError(f"{path}: no settings in it", _HINT)
    return File(
        documents.get(kubeproxy_v1alpha1.KIND, NOTHING.kubeproxy),
        documents.get(bpfsvc_v1alpha1.KIND, NOTHING.bpfsvc),
        digest(data),
        tuple(repeated),
    )


def digest(data: bytes) -> str:
    """Return what identifies the content of a file."""
    return hashlib.sha256(data).hexdigest()


def _document(source: Document, file: str) -> FileDocument:
    document = source.value
    if not isinstance(document, dict):
        raise UsageError(f"{file}:{source.line()}: not an object", _HINT)
    identity = tuple(document.get(name) for name in _IDENTITY)
    if identity not in _DOCUMENTS:
        line = source.line((_IDENTITY[1],))
        given = ", ".join(
            f"{name} {value!r}" for name, value in zip(_IDENTITY, identity, strict=True) if value
        )
        raise UsageError(
            f"{file}:{line}: {given or 'a document without apiVersion and kind'}"
            f" is not {kubeproxy_v1alpha1.API_VERSION} {kubeproxy_v1alpha1.KIND}",
            _HINT,
        )
    fields = {name: value for name, value in document.items() if name not in _IDENTITY}
    return FileDocument(fields, source, file)
