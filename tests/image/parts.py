"""``python -m tests.image.parts`` says what the image of ``make image`` consists of, by size.

``--write docs/sizing.md`` puts the table there.
"""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import bpfsvc
from tests.docs.figures import write_section
from tests.release.images import Archive, write_archive

NAME = "make image"
STORAGE = Path(__file__).parents[2] / "build" / "image"
LIMIT = 60_000_000
"""Bytes of all files of the image without a compiler."""

_PARTS = {
    "bpfsvc": r".*/site-packages/bpfsvc[-/]",
    "compiled kernel programs": r"usr/share/bpfsvc/",
    "Python packages": r".*/site-packages/",
    "Python": r"usr/lib/python3|usr/bin/python3|opt/",
    "programs of netfilter": r"usr/sbin/|.*/xtables/|usr/bin/",
    "shared libraries": r".*\.so\b|etc/ld\.so\.cache",
    "licences, records of packages, settings": r"",
}


class Image(NamedTuple):
    """Bytes of all files, by part, and of the compressed layers."""

    parts: Counter[str]
    compressed: int

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return self.parts.total()


def measure(storage: Path = STORAGE, name: str = "bpfsvc") -> Image:
    """Return the sizes of an image that ``make image`` has built."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "image.tar")
        write_archive(storage, f"{name}:{bpfsvc.__version__}", 0, path)
        parts: Counter[str] = Counter()
        for file, size, _ in Archive(path, name, platform.machine()).files():
            parts[next(part for part, text in _PARTS.items() if re.match(text, file))] += size
        return Image(parts, path.stat().st_size)


def main() -> int:
    """Print the table; the status is 1 if the image is larger than it may be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table there")
    arguments = parser.parse_args()
    image = measure()
    rows = [*image.parts.most_common(), ("all", image.total), ("compressed", image.compressed)]
    table = "".join(f"| {part} | {size / 1e6:.1f} |\n" for part, size in rows)
    text = f"| part of the image | MB |\n|---|---|\n{table}"
    print(text)
    if arguments.write:
        write_section(arguments.write, NAME, text)
    return int(image.total > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
