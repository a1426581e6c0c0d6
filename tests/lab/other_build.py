"""A newer version of bpfsvc, for tests of upgrades."""

from __future__ import annotations

import shutil
from pathlib import Path

import bpfsvc

FIELD = "mark"
"""What connections of that version have and those of this one do not."""


def copy_with_another_layout(directory: Path) -> None:
    """Copy the package to a directory, and give connections one field more there."""
    header = copy_of_package(directory) / "bpf" / "maps" / "connections.h"
    before, struct, after = header.read_text().partition("struct connection {\n")
    assert struct
    header.write_text(f"{before}{struct}\t__u64 {FIELD};\n{after}")


def copy_of_package(directory: Path) -> Path:
    """Copy the package to a directory, from which agents can be started, and return its place."""
    package = directory / "bpfsvc"
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(Path(bpfsvc.__file__).parent, package, ignore=ignored))
