"""Images are written in the form in which containerd reads them."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.oci import Contents, Image, Layer


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    """A layer with a program, a link and a folder."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    contents = Contents(
        files={"usr/bin/program": program}, links={"usr/bin/other": "program"}, folders=["tmp"]
    )
    return contents.write(tmp_path / "layer.tar")


def blobs(archive: Path) -> dict[str, bytes]:
    """Return the files of an archive by their path."""
    with tarfile.open(archive) as members:
        return {member.name: members.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def test_a_layer_has_executable_files_links_and_folders(layer: Layer) -> None:
    with tarfile.open(layer.file) as members:
        seen = {member.name: (member.type, member.mode, member.linkname) for member in members}
    assert seen["usr/bin/program"] == (tarfile.REGTYPE, 0o755, "")
    assert seen["usr/bin/other"][0::2] == (tarfile.SYMTYPE, "program")
    assert seen["tmp"][:2] == (tarfile.DIRTYPE, 0o1777)


def test_the_same_contents_give_the_same_layer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    contents = Contents(files={"file": tmp_path / "file"})
    first = contents.write(tmp_path / "first.tar")
    (tmp_path / "file").touch()
    assert contents.write(tmp_path / "second.tar").blob == first.blob


def test_every_reference_in_an_archive_is_the_digest_of_a_blob(
    layer: Layer, tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    names = ["registry.example/shop:1", "registry.example/shop:2"]
    Image(names=names, layers=[layer], entrypoint=["/program"], user="7").write(archive)
    files = blobs(archive)
    index = json.loads(files["index.json"])
    assert [each["annotations"]["io.containerd.image.name"] for each in index["manifests"]] == names

    def referred(descriptor: dict[str, Any]) -> bytes:
        algorithm, digest = descriptor["digest"].split(":")
        content = files[f"blobs/{algorithm}/{digest}"]
        assert hashlib.sha256(content).hexdigest() == digest
        assert len(content) == descriptor["size"]
        return content

    manifest = json.loads(referred(index["manifests"][0]))
    config = json.loads(referred(manifest["config"]))
    (only,) = manifest["layers"]
    assert referred(only) == layer.file.read_bytes()
    assert config["rootfs"]["diff_ids"] == [only["digest"]]
    assert config["config"] == {"Entrypoint": ["/program"], "User": "7"}
