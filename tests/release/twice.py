"""``make release-test``: makes the release of the present commit twice, and compares all bytes.

It needs no key, because a signature is about the bytes. The images are built anew each time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.release.__main__ import NONE, main
from tests.release.signature import SUMS


def differences(directory: Path, *options: str) -> list[str]:
    """Make a release twice below a directory; return the names of files that differ."""
    sums = []
    for name in ("first", "second"):
        target = directory / name
        if main(["--key", NONE, "--target", str(target), *options]) != 0:
            raise SystemExit(1)
        sums.append(set((target / SUMS).read_text().splitlines()))
    return sorted({line.split()[1] for line in sums[0] ^ sums[1]})


def compare(arguments: Sequence[str] | None = None) -> int:
    """Say whether both are the same; options are those of ``make release``."""
    options = argparse.ArgumentParser(prog="make release-test", description=__doc__)
    _, others = options.parse_known_args(arguments)
    with TemporaryDirectory() as directory:
        different = differences(Path(directory), *others)
    print(f"different: {', '.join(different)}" if different else "both runs made the same bytes")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(compare())
