"""``make release``: the files of a release in ``build/release``, made of the present commit.

The same commit makes the same bytes. Nothing is published: RELEASING.md says what comes after.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bpfsvc.base.errors import BpfsvcError, UsageError
from tests.release import attachments, changelog
from tests.release.checkout import Release, export, read_release
from tests.release.images import build_image
from tests.release.python_packages import build_packages
from tests.release.sbom import write_sbom
from tests.release.signature import SIGNERS, Key, write_sums

CHECKOUT = Path(__file__).parents[2]
NONE = "none"
NOTES = "RELEASE-NOTES.md"
IMAGES = ("bpfsvc", "bpfsvc-compiler")
ARCHITECTURES = ("amd64", "arm64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Check everything that can be wrong, then make the files; return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        _make(given)
    except BpfsvcError as error:
        print(f"make release: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--key", default="", help="the releaser's private key; none: no signature")
    parser.add_argument("--signers", type=Path, default=SIGNERS, help="keys that users trust")
    parser.add_argument("--architectures", default="amd64", help="of the images, by Debian's names")
    parser.add_argument("--images", default=" ".join(IMAGES), help="which; none: no images")
    parser.add_argument("--address", default="", help="where the files will be, for krew")
    parser.add_argument("--checkout", type=Path, default=CHECKOUT, help="what is released")
    parser.add_argument("--target", type=Path, default=CHECKOUT / "build/release")
    return parser


def _make(given: argparse.Namespace) -> None:
    key = _key(given)
    images = _names("--images", given.images, IMAGES)
    architectures = _names("--architectures", given.architectures, ARCHITECTURES)
    release = read_release(given.checkout)
    notes = changelog.notes(given.checkout / "CHANGELOG.md", release)
    os.umask(0o022)
    unfinished = given.target.with_name(f"{given.target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    with TemporaryDirectory() as directory:
        sources = Path(directory, f"bpfsvc-{release.version}")
        sources.mkdir()
        export(given.checkout, release, sources)
        (unfinished / NOTES).write_text(notes)
        build_packages(sources, release, unfinished)
        attachments.pack_chart(sources, release, unfinished)
        attachments.pack_plugin(sources, release, given.address.rstrip("/"), unfinished)
        for architecture in architectures if images else ():
            for name in images:
                _image(sources, release, name, architecture, unfinished)
        sums = write_sums(unfinished)
        if key:
            key.sign(sums)
    shutil.rmtree(given.target, ignore_errors=True)
    unfinished.replace(given.target)
    for path in sorted(given.target.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    signed = f"signed by {key.name}" if key else "not signed"
    print(f"bpfsvc {release.version}, {signed}, in {given.target}")


def _image(sources: Path, release: Release, name: str, architecture: str, target: Path) -> None:
    print(f"building {name} for {architecture}", flush=True)
    suffix = "" if architecture == "amd64" else f"-{architecture}"
    storage = CHECKOUT / f"build/image{suffix}"
    archive = build_image(sources, storage, release, name, architecture, target)
    write_sbom(archive, release, sources / "deploy/image/packages.lock")


def _key(given: argparse.Namespace) -> Key | None:
    if given.key == NONE:
        return None
    if not given.key:
        raise UsageError(
            "no key to sign the release with",
            "make release KEY=FILE, or KEY=none for a build without a signature",
        )
    return Key(Path(given.key).expanduser(), given.signers)


def _names(option: str, given: str, known: Sequence[str]) -> list[str]:
    if given == NONE:
        return []
    names = given.replace(",", " ").split()
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"{option}: {wrong[0]} is none of {', '.join(known)}", "see RELEASING.md")
    return names


if __name__ == "__main__":
    sys.exit(main())
