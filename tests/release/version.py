"""``python -m tests.release.version 1.2.3`` writes a new version wherever the sources have one.

In CHANGELOG.md what was unreleased becomes the section of that version. The commit of this is what
gets the tag.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, UsageError
from tests.release.changelog import UNRELEASED, read_sections
from tests.release.checkout import version_written

_PLACES = (
    r'(?P<before>^__version__ = ")OLD(?=")',
    r"(?P<before>\bARG VERSION=)OLD\b",
    r"(?P<before>\bbpfsvc(?:-compiler)?:)OLD\b",
    r"(?P<before>^(?:version|appVersion): \"?)OLD\b",
)
_FILES = ("bpfsvc/__init__.py", "Dockerfile", "README.md", "deploy", "docs")


def main() -> int:
    """Write the version; the status is 1 if it cannot be one."""
    try:
        if len(sys.argv) != 2:
            raise UsageError("a version is missing", "python -m tests.release.version 1.2.3")
        changed = write_version(Path.cwd(), sys.argv[1], datetime.now(UTC).date())
    except BpfsvcError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print("\n".join(changed))
    return 0


def write_version(checkout: Path, version: str, today: date) -> list[str]:
    """Replace the version in all files that have it; return their names."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise UsageError(f"{version} is no version", "use 1.2.3, or 1.2.3rc1 before it")
    changelog = checkout / "CHANGELOG.md"
    text = changelog.read_text()
    sections = read_sections(text)
    if version in sections or not sections.get(UNRELEASED, "").strip():
        why = "has a section already" if version in sections else "would have no changes"
        raise BpfsvcError(f"version {version} {why} in {changelog.name}", "choose another version")
    heading = f"## [{UNRELEASED}]\n"
    changelog.write_text(text.replace(heading, f"{heading}\n## [{version}] - {today}\n", 1))
    old = re.escape(version_written(checkout))
    patterns = [re.compile(place.replace("OLD", old), re.MULTILINE) for place in _PLACES]
    asked = ["git", "ls-files", "-z", *_FILES]
    listed = subprocess.run(asked, cwd=checkout, capture_output=True, text=True, check=True).stdout
    return [
        changelog.name,
        *(name for name in listed.split("\0") if _write(checkout / name, patterns, version)),
    ]


def _write(path: Path, patterns: list[re.Pattern[str]], version: str) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    before = after = path.read_bytes().decode(errors="surrogateescape")
    for pattern in patterns:
        after = pattern.sub(rf"\g<before>{version}", after)
    if after != before:
        path.write_bytes(after.encode(errors="surrogateescape"))
    return after != before


if __name__ == "__main__":
    sys.exit(main())
