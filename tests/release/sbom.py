"""The bill of materials of an image, as CycloneDX JSON: what its own package records say.

dpkg's records name the Debian packages, and the metadata of distributions the Python packages; both
are in the image for scanners. The hashes of Debian packages are those of ``packages.lock``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tests.release.checkout import Release
from tests.release.images import Archive

_DEBIAN = re.compile(r"var/lib/dpkg/status\.d/[^/]+")
_PYTHON = re.compile(r".*/site-packages/[^/]+\.dist-info/METADATA")
_SPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of addresses


def write_sbom(archive: Archive, release: Release, lock: Path) -> Path:
    """Write the bill of an image beside its archive; two runs write the same."""
    digest = archive.digest
    image = Component(
        type=ComponentType.CONTAINER,
        name=archive.name,
        version=release.version,
        bom_ref=archive.name,
        purl=PackageURL(
            "oci", name=archive.name, version=digest, qualifiers={"arch": archive.architecture}
        ),
    )
    bom = Bom(
        components=read_components(archive, lock),
        serial_number=uuid.uuid5(_SPACE, f"{archive.name} {archive.architecture} {digest}"),
    )
    bom.metadata.component = image
    bom.metadata.timestamp = datetime.fromtimestamp(release.seconds, UTC)
    bom.register_dependency(image, bom.components)
    path = archive.path.with_name(archive.path.name.replace(".oci.tar", ".cdx.json"))
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=1) + "\n")
    return path


def read_components(archive: Archive, lock: Path) -> Iterator[Component]:
    """Yield the packages of an image, each of them once."""
    hashes = {
        (name, version): sha256
        for of, name, version, sha256 in map(str.split, lock.read_text().splitlines()[2:])
        if of == archive.architecture
    }
    seen: set[str] = set()
    for name, _, content in archive.files():
        if not (_DEBIAN.fullmatch(name) or _PYTHON.fullmatch(name)):
            continue
        text = content.decode()
        debian = _DEBIAN.fullmatch(name) is not None
        component = _debian(text, hashes) if debian else _python(text)
        if str(component.purl) not in seen:
            seen.add(str(component.purl))
            yield component


def _debian(text: str, hashes: dict[tuple[str, str], str]) -> Component:
    fields = HeaderParser().parsestr(text)
    name, version = fields["Package"], fields["Version"]
    qualifiers = {"arch": fields["Architecture"], "distro": "bookworm"}
    purl = PackageURL("deb", "debian", name, version, qualifiers)
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=hashes[name, version])],
    )


def _python(text: str) -> Component:
    fields = HeaderParser().parsestr(text)
    name = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
    purl = PackageURL("pypi", name=name, version=fields["Version"])
    licence = fields["License-Expression"]
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=fields["Version"],
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseFactory().make_from_string(licence)] if licence else (),
    )
