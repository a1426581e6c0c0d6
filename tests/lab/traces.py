"""The traces of a lab that other processes can see while it exists."""

from __future__ import annotations

from pathlib import Path

from bpfsvc.devtools.lab import sandbox


def traces() -> list[Path]:
    """Return the named namespaces, cgroups and trees of pins."""
    return sorted(
        [
            *sandbox.NETNS_ROOT.iterdir(),
            *sandbox.CGROUP_ROOT.glob("*/"),
            *sandbox.BPF_ROOT.glob("lab*"),
        ]
    )


def descriptors() -> int:
    """Return the number of file descriptors that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
