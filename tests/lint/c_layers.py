"""Check what the C headers under ``bpf/`` include: headers of their own room or of a lower one.

So a library knows neither maps nor what happens to a packet, and a map knows no path. The rooms
with programs are on top and do not include each other. A step is one header.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.datapath.loader.source import directory
from tests.lint.headers import headers

_PATH = ("answer", "schedule", "conn", "fast", "first", "hook")
ROOMS = ("lib", "maps", "path", *(f"path/{room}" for room in _PATH))
"""From the lowest to the highest."""

PROGRAMS = ("path/agent", "path/socket", "path/step", "path/xdp")
"""Rooms on top, side by side."""


def may_include(room: str) -> set[str]:
    """Return the rooms whose headers a header of ``room`` may include."""
    if room in ROOMS:
        return {*ROOMS[: ROOMS.index(room) + 1]}
    return {*ROOMS} if room == "path/step" else {*ROOMS, room}


def forbidden_includes(root: Path) -> Iterator[str]:
    """Yield a line for each include that breaks the rule, and for each header without a room."""
    for header in headers(root):
        room = str(Path(header).parent)
        if room not in (*ROOMS, *PROGRAMS):
            yield f"{root / header}: tests/lint/c_layers.py does not know this folder"
        for included in re.findall(r'^#include "(.+)"$', (root / header).read_text(), re.MULTILINE):
            if str(Path(included).parent) not in may_include(room):
                yield f"{root / header}: must not include {included}"


def main() -> int:
    """Print all faults; return the exit status."""
    faults = list(forbidden_includes(directory()))
    sys.stderr.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
