"""CHANGELOG.md: a section for each version, from which the notes of a release are cut."""

from __future__ import annotations

import re
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError
from tests.release.checkout import Release

UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?\n", re.MULTILINE)


def notes(path: Path, release: Release) -> str:
    """Return the notes of a release, which has to be the newest version of the changelog."""
    sections = read_sections(path.read_text())
    if not release.is_tagged:
        text = sections.get(UNRELEASED, "")
        return f"# bpfsvc {release.version}\n\nA build between versions.\n\n{text}".rstrip() + "\n"
    newest = next((name for name in sections if name != UNRELEASED), "none")
    if newest != release.version:
        raise BpfsvcError(
            f"the tag is v{release.version}, and the newest version of {path.name} is {newest}",
            f"python -m tests.release.version {release.version} writes the heading",
        )
    if sections.get(UNRELEASED, "").strip():
        raise BpfsvcError(
            f"{path.name} has entries below [{UNRELEASED}], above version {release.version}",
            f"move them into the section of {release.version}: they are in this commit",
        )
    return f"# bpfsvc {release.version}\n\n{sections[newest].strip()}\n"


def read_sections(text: str) -> dict[str, str]:
    """Return the sections by version, the newest first; one of a version needs a date."""
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    for heading in headings:
        if heading[1] != UNRELEASED and not heading[2]:
            raise BpfsvcError(
                f"the heading of version {heading[1]} has no date", "1.2.3] - YYYY-MM-DD"
            )
    return {
        heading[1]: text[heading.end() : end].lstrip("\n")
        for heading, end in zip(headings, ends, strict=True)
    }
