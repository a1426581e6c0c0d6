"""A newer version of bpfsvc, for tests of upgrades."""

from __future__ import annotations

import shutil
from pathlib import Path

import bpfsvc

FIELD = "mark"
"""What connections of that version have and those of this one do not."""


def copy_with_another_layout(directory: Path) -> None:
    """Copy the package to a directory, and give connections one field more there."""
    package = directory / "bpfsvc"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(bpfsvc.__file__).parent, package, ignore=ignored)
    header = package / "bpf" / "maps" / "connections.h"
    before, struct, after = header.read_text().partition("struct connection {\n")
    assert struct
    header.write_text(f"{before}{struct}\t__u64 {FIELD};\n{after}")
