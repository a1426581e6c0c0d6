"""The bill of materials of an image names what its package records name, with their hashes."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from bpfsvc.base.errors import BpfsvcError
from tests.release.checkout import Release
from tests.release.images import Archive
from tests.release.sbom import write_sbom

RELEASE = Release("1.2.3", "0" * 40, 1_700_000_000)
SITE = "opt/bpfsvc/lib/python3.11/site-packages"
FILES = {
    "var/lib/dpkg/status.d/libc6": "Package: libc6\nVersion: 2.36-9\nArchitecture: amd64\n",
    "var/lib/dpkg/status.d/tzdata": "Package: tzdata\nVersion: 2030a-0\nArchitecture: all\n",
    f"{SITE}/PyYAML-6.0.dist-info/METADATA": "Metadata-Version: 2.4\nName: PyYAML\nVersion: 6.0\n"
    "License-Expression: MIT\n\nA description.\nVersion: none\n",
    f"{SITE}/yaml/__init__.py": "Package: none\n",
}
LOCK = f"""\
#
#
amd64 libc6 2.36-9 {"a" * 64}
arm64 libc6 2.36-9 {"b" * 64}
amd64 tzdata 2030a-0 {"c" * 64}
"""


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """An image of two layers that have the same files."""
    return image(tmp_path, {name: text.encode() for name, text in FILES.items()})


def image(directory: Path, files: dict[str, bytes], architecture: str = "amd64") -> Archive:
    """Return an image for amd64 whose description names an architecture."""
    layer, config = packed(files), json.dumps({"architecture": architecture}).encode()
    layers = [{"digest": digest(layer)}] * 2
    manifest = json.dumps({"config": {"digest": digest(config)}, "layers": layers}).encode()
    index = json.dumps({"manifests": [{"digest": digest(manifest)}]}).encode()
    blobs = {f"blobs/{digest(blob).replace(':', '/')}": blob for blob in (layer, config, manifest)}
    path = directory / "bpfsvc-1.2.3-amd64.oci.tar"
    path.write_bytes(packed({"index.json": index, **blobs}))
    return Archive(path, "bpfsvc", "amd64")


def program(machine: int) -> bytes:
    """Return the begin of a program for a machine of elf.h."""
    return b"\x7fELF".ljust(18, b"\0") + machine.to_bytes(2, "little")


def test_an_image_for_other_machines_is_refused(tmp_path: Path) -> None:
    image(tmp_path, {"usr/bin/python3": program(62)}).check()
    with pytest.raises(BpfsvcError, match="bpfsvc for amd64 has usr/sbin/nft, which is for other"):
        image(tmp_path, {"bin/a": program(62), "usr/sbin/nft": program(183)}).check()
    with pytest.raises(BpfsvcError, match="the image bpfsvc for amd64 says arm64"):
        image(tmp_path, {"bin/a": program(62)}, "arm64").check()


def packed(files: dict[str, bytes]) -> bytes:
    """Return a tar file."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def digest(content: bytes) -> str:
    """Return the digest of a blob."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def written(archive: Archive, lock: str = LOCK) -> str:
    """Return the bill of an image."""
    path = archive.path.with_name("packages.lock")
    path.write_text(lock)
    return write_sbom(archive, RELEASE, path).read_text()


def test_the_bill_names_each_package_once_with_version_and_hash(archive: Archive) -> None:
    bill: dict[str, Any] = json.loads(written(archive))
    hashes = {
        part["purl"]: [each["content"] for each in part.get("hashes", ())]
        for part in bill["components"]
    }
    assert hashes == {
        "pkg:deb/debian/libc6@2.36-9?arch=amd64&distro=bookworm": ["a" * 64],
        "pkg:deb/debian/tzdata@2030a-0?arch=all&distro=bookworm": ["c" * 64],
        "pkg:pypi/pyyaml@6.0": [],
    }
    (python,) = (part for part in bill["components"] if part["name"] == "pyyaml")
    assert python["licenses"] == [{"license": {"id": "MIT"}}]
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("bpfsvc", "1.2.3")
    assert archive.digest.removeprefix("sha256:") in about["purl"]


def test_the_bill_is_valid_and_the_same_each_time(archive: Archive) -> None:
    first = written(archive)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(first) is None
    assert written(archive) == first
    assert '"timestamp": "2023-11-14T22:13:20+00:00"' in first


def test_a_package_that_is_not_in_the_lock_has_no_bill(archive: Archive) -> None:
    with pytest.raises(KeyError, match="tzdata"):
        written(archive, lock=LOCK.replace("amd64 tzdata", "arm64 tzdata"))
