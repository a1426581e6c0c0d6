"""Images made without a registry: an OCI archive of layers that are tar files.

The form is that of the OCI image specification (image-layout, manifest, config), with containerd's
annotation for the image's names, as its import reads them.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_NAME = "io.containerd.image.name"
_PLATFORM = {"architecture": "amd64", "os": "linux"}


@dataclass(frozen=True, slots=True)
class Blob:
    """Content known by its digest: the hexadecimal SHA-256, the size in bytes."""

    digest: str
    size: int

    @property
    def path(self) -> str:
        """Where it is in the archive."""
        return f"blobs/sha256/{self.digest}"

    def descriptor(self, media_type: str) -> dict[str, Any]:
        """Return what refers to it."""
        return {"mediaType": media_type, "digest": f"sha256:{self.digest}", "size": self.size}


@dataclass(frozen=True, slots=True)
class Layer:
    """A tar file, and its digest."""

    file: Path
    blob: Blob

    @staticmethod
    def of(file: Path) -> Layer:
        """Read a file's digest."""
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        return Layer(file, Blob(digest, file.stat().st_size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Names such as ``registry.k8s.io/pause:3.10``, layers from the lowest up, how it runs."""

    names: Sequence[str]
    layers: Sequence[Layer]
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Sequence[str] = ()
    user: str = ""

    def config(self) -> bytes:
        """Return the configuration's text."""
        run = {
            "Entrypoint": list(self.entrypoint),
            "Cmd": list(self.command),
            "Env": list(self.environment),
            "User": self.user,
        }
        digests = [f"sha256:{layer.blob.digest}" for layer in self.layers]
        root = {"type": "layers", "diff_ids": digests}
        kept = {key: value for key, value in run.items() if value}
        return _text({**_PLATFORM, "config": kept, "rootfs": root})

    def write(self, to: Path) -> None:
        """Write the archive; an older one is replaced when this one is complete."""
        config = self.config()
        manifest = _text(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": _blob(config).descriptor(_CONFIG),
                "layers": [layer.blob.descriptor(_LAYER) for layer in self.layers],
            }
        )
        described = _blob(manifest).descriptor(_MANIFEST) | {"platform": _PLATFORM}
        index = {
            "schemaVersion": 2,
            "manifests": [described | {"annotations": {_NAME: name}} for name in self.names],
        }
        part = to.with_name(to.name + ".part")
        with tarfile.open(part, "w") as archive:
            _add(archive, "oci-layout", _text({"imageLayoutVersion": "1.0.0"}))
            _add(archive, "index.json", _text(index))
            for content in (config, manifest):
                _add(archive, _blob(content).path, content)
            for path, file in {layer.blob.path: layer.file for layer in self.layers}.items():
                archive.add(file, arcname=path)
        part.replace(to)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a layer adds: files by their path in the image, with mode 755; links; open folders."""

    files: dict[str, Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()

    def write(self, to: Path) -> Layer:
        """Write the layer's tar file; the same contents give the same bytes."""
        with tarfile.open(to, "w") as archive:
            for path in self.folders:
                entry = tarfile.TarInfo(path)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
                archive.addfile(entry)
            for path, source in self.files.items():
                entry = tarfile.TarInfo(path)
                entry.mode, entry.size = 0o755, source.stat().st_size
                with source.open("rb") as content:
                    archive.addfile(entry, content)
            for path, target in self.links.items():
                entry = tarfile.TarInfo(path)
                entry.type, entry.linkname = tarfile.SYMTYPE, target
                archive.addfile(entry)
        return Layer.of(to)


def _text(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _blob(content: bytes) -> Blob:
    return Blob(hashlib.sha256(content).hexdigest(), len(content))


def _add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
