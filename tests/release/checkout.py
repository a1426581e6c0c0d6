"""What is released: the commit that is checked out, its version, and its files and no others."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError

_VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)
_MODULE = Path("bpfsvc/__init__.py")
_PLUGIN = Path("deploy/plugin/kubectl-bpfsvc")
_DIGITS = 9  # of a commit


@dataclass(frozen=True, slots=True)
class Release:
    """A version made of a commit."""

    version: str
    """``1.2.3`` with the tag ``v1.2.3``; without a tag ``1.2.3+gCOMMIT``."""

    commit: str
    seconds: int
    """When it was committed, since 1970: the date of all files of the release."""

    @property
    def is_tagged(self) -> bool:
        """True if this is the release of a version, and not a build in between."""
        return "+" not in self.version

    @property
    def image_tag(self) -> str:
        """The version as tag of an image, which must have no plus sign."""
        return self.version.replace("+", "-")


def read_release(checkout: Path) -> Release:
    """Return what a clean checkout is a release of; refuse changes, and a wrong tag."""
    if changed := _git(checkout, "status", "--porcelain").splitlines():
        raise BpfsvcError(
            f"the checkout has changes that are not committed: {changed[0][3:]}"
            + (f" and {len(changed) - 1} more" if changed[1:] else ""),
            "commit or remove them: a release is made of a commit",
        )
    commit, seconds = _git(checkout, "log", "-1", "--format=%H %ct").split()
    written = version_written(checkout)
    tags = [tag for tag in _git(checkout, "tag", "--points-at", "HEAD").split() if _is_version(tag)]
    if not tags:
        return Release(f"{written}+g{commit[:_DIGITS]}", commit, int(seconds))
    if tags != [f"v{written}"]:
        raise BpfsvcError(
            f"the tag {' '.join(tags)} is not that of version {written}, which {_MODULE} has",
            f"python -m tests.release.version {tags[-1][1:]} writes it; commit that, and tag it",
        )
    return Release(written, commit, int(seconds))


def version_written(checkout: Path) -> str:
    """Return the version that the sources have."""
    match = _VERSION.search((checkout / _MODULE).read_text())
    if not match:
        raise BpfsvcError(f"{_MODULE} has no version", '__version__ = "1.2.3"')
    return match[1]


def export(checkout: Path, release: Release, target: Path) -> None:
    """Write the files of the commit into a directory; agent and plugin know the version."""
    packed = subprocess.run(
        ["git", "-c", "tar.umask=0022", "archive", release.commit],
        cwd=checkout,
        check=True,
        capture_output=True,
    ).stdout
    subprocess.run(["tar", "-x", "-C", target], input=packed, check=True)
    for path in (target / _MODULE, target / _PLUGIN):
        path.write_text(_VERSION.sub(f'__version__ = "{release.version}"', path.read_text()))


def _is_version(tag: str) -> bool:
    return bool(re.fullmatch(r"v\d+\.\d+\.\d+\S*", tag))


def _git(checkout: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=checkout, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BpfsvcError(
            f"git {words[0]}: {done.stderr.strip().splitlines()[-1]}",
            "a release is made in a git checkout",
        )
    return done.stdout.rstrip("\n")
