"""C programs that tests and the benchmark bring along as sources, compiled where they run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from bpfsvc.base.errors import SystemUnfit

_CC = ("cc", "-O2", "-Wall", "-Wextra", "-Werror")
_INSTALL = "apt-get install gcc libc6-dev"


def build(program: Path, sources: Iterable[Path], name: str, *flags: str) -> Path:
    """Compile ``program`` and return its path. ``name``: what it is, for messages.

    ``SystemUnfit`` without a C compiler or its headers.
    """
    if shutil.which(_CC[0]) is None:
        raise SystemUnfit(f"there is no C compiler (cc) to build {name} with", _INSTALL)
    command = [*_CC, *flags, "-o", str(program), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no reason")
        raise SystemUnfit(f"cc cannot build {name}: {first.strip()}", _INSTALL)
    return program
