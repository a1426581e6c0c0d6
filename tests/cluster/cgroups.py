"""The cgroups of a node: one of its name in each hierarchy of this machine.

A machine has a unified hierarchy (cgroup2 alone), or a hybrid one: a hierarchy for each controller,
and cgroup2 beside them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from bpfsvc.devtools.lab.patience import wait

Cgroups = Literal["hybrid", "unified"]
CGROUPS: tuple[Cgroups, ...] = get_args(Cgroups)

_MOUNTS = Path("/proc/self/mountinfo")
_UNDER = "/sys/fs/cgroup"
_INHERITED = ("cpuset.cpus", "cpuset.mems")

SYSTEM = "system"
"""The cgroup, within a node's, of its own daemons: cgroup2 wants no processes beside children."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where a hierarchy is mounted, and how: ``options`` of the mount, of the first version."""

    root: Path
    unified: bool
    options: str = ""


def hierarchies(mounts: str | None = None) -> list[Hierarchy]:
    """Return the hierarchies of this machine (or of a text in the form of mountinfo)."""
    seen: dict[str, Hierarchy] = {}
    for line in (_MOUNTS.read_text() if mounts is None else mounts).splitlines():
        left, _, right = line.partition(" - ")
        place = left.split()[4]
        kind, _, options = right.split()[:3]
        if kind in ("cgroup", "cgroup2") and place.startswith(_UNDER):
            named = [word for word in options.split(",") if word not in ("rw", "ro")]
            if any(word.startswith("name=") for word in named):
                named.insert(0, "none")
            unified = kind == "cgroup2"
            text = "" if unified else ",".join(named)
            seen[place] = Hierarchy(Path(place), unified, text)
    return list(seen.values())


def of_machine() -> Cgroups:
    """Return which of the two this machine has."""
    return "unified" if all(hierarchy.unified for hierarchy in hierarchies()) else "hybrid"


def make(name: str, among: Sequence[Hierarchy]) -> None:
    """Make a node's cgroups."""
    for hierarchy in among:
        made = hierarchy.root / name
        made.mkdir()
        if hierarchy.unified:
            (made / SYSTEM).mkdir()
        for file in _INHERITED:  # a new cpuset is empty, and then no process may join
            if (hierarchy.root / file).exists() and (made / file).exists():
                (made / file).write_text((hierarchy.root / file).read_text())


def enter(name: str, among: Sequence[Hierarchy], *, daemons: bool = True) -> None:
    """Move the calling process into a node's cgroups: to its daemons, or into the topmost one."""
    for hierarchy in among:
        to = hierarchy.root / name
        inner = daemons and hierarchy.unified
        (to / SYSTEM if inner else to).joinpath("cgroup.procs").write_text("0")


def remove(name: str, among: Sequence[Hierarchy]) -> None:
    """End the processes in a node's cgroups, and remove those that exist."""
    for hierarchy in among:
        top = hierarchy.root / name
        if top.exists():
            wait(lambda top=top: _removed(top), f"the removal of {top}", 30)  # type: ignore[misc]


def _removed(top: Path) -> bool:
    for folder, _, _ in os.walk(top, topdown=False):
        with suppress(FileNotFoundError, ProcessLookupError):
            for number in Path(folder, "cgroup.procs").read_text().split():
                os.kill(int(number), signal.SIGKILL)
        with suppress(OSError):
            Path(folder).rmdir()
    return not top.exists()
