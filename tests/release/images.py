"""The images as OCI archives, and what is in them, read from their layers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bpfsvc.base.errors import BpfsvcError
from tests.release.archives import below, write_tar
from tests.release.checkout import Release

REPOSITORY = "docker.io/library"
"""What a name without a registry means, as in the manifests of ``deploy/``."""

_ELF_MACHINES = {"amd64": 62, "arm64": 183}
"""Of ``elf.h``, by Debian's names."""


@dataclass(frozen=True, slots=True)
class Archive:
    """An image in a file with the layout of OCI."""

    path: Path
    name: str
    architecture: str

    @property
    def digest(self) -> str:
        """The digest of the image's manifest, as registries say it."""
        with tarfile.open(self.path) as archive:
            return str(_json(archive, "index.json")["manifests"][0]["digest"])

    def check(self) -> None:
        """Raise :class:`BpfsvcError` if the image, or a program in it, is for other machines."""
        with tarfile.open(self.path) as archive:
            config = _json(archive, _blob(_manifest(archive)["config"]["digest"]))
        faults = [f"says {config['architecture']}"] * (config["architecture"] != self.architecture)
        machine = _ELF_MACHINES[self.architecture].to_bytes(2, "little")
        faults += [
            f"has {name}, which is for other machines"
            for name, _, content in self.files()
            if content.startswith(b"\x7fELF") and content[18:20] != machine
        ]
        if faults:
            raise BpfsvcError(
                f"the image {self.name} for {self.architecture} {faults[0]}",
                "remove build/image-*, and try again",
            )

    def files(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield the regular files of all layers: name, size and content."""
        with tarfile.open(self.path) as archive:
            for layer in _manifest(archive)["layers"]:
                with tarfile.open(fileobj=archive.extractfile(_blob(layer["digest"]))) as packed:
                    for entry in packed:
                        content = packed.extractfile(entry) if entry.isfile() else None
                        if content:
                            yield entry.name, entry.size, content.read()


def build_image(
    sources: Path, storage: Path, release: Release, name: str, architecture: str, target: Path
) -> Archive:
    """Build an image of exported sources, and write its archive."""
    script: list[str | Path] = [sources / "tests/image/build.sh", storage, name, architecture]
    _run(script, release.seconds, f"the image {name} cannot be built", sources)
    archive = target / f"{name}-{release.image_tag}-{architecture}.oci.tar"
    write_archive(storage, f"{name}:{release.image_tag}", release.seconds, archive)
    made = Archive(archive, name, architecture)
    made.check()
    return made


def write_archive(storage: Path, reference: str, seconds: int, target: Path) -> None:
    """Write an image of buildah's storage as an OCI archive."""
    with TemporaryDirectory() as directory:
        layout = Path(directory, "layout")
        push = [
            *("buildah", "--storage-driver=vfs", f"--root={storage}/storage"),
            *(f"--runroot={storage}/run", "push", "--quiet", "--format=oci"),
            *(f"localhost/{reference}", f"oci:{layout}:{REPOSITORY}/{reference}"),
        ]
        _run(push, seconds, f"the image {reference} cannot be written", Path.cwd())
        write_tar(target, below(layout), seconds)


def _run(command: Sequence[str | Path], seconds: int, fault: str, at: Path) -> None:
    done = subprocess.run(
        command,
        cwd=at,
        env={
            **os.environ,
            "PYTHON": sys.executable,
            "SOURCE_DATE_EPOCH": str(seconds),
            "PACKAGES": "locked",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise BpfsvcError(f"{fault}: {last}", "make image shows all output")


def _json(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    content = archive.extractfile(name)
    assert content
    read: dict[str, Any] = json.load(content)
    return read


def _manifest(archive: tarfile.TarFile) -> dict[str, Any]:
    return _json(archive, _blob(_json(archive, "index.json")["manifests"][0]["digest"]))


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
