"""The capabilities that an agent needs, checked before anything is changed."""

from __future__ import annotations

import os
from pathlib import Path

from bpfsvc.base.errors import SystemUnfit

_NEEDED = {"CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
"""Capability numbers of linux/capability.h."""

_CAP_SYS_ADMIN = 21
_IN_SYS_ADMIN = ("CAP_PERFMON", "CAP_BPF")
"""What CAP_SYS_ADMIN includes."""


def require_privileges() -> None:
    """Raise :class:`SystemUnfit` unless this process may load and attach programs."""
    effective = _effective_capabilities()
    missing = [
        name
        for name, number in _NEEDED.items()
        if not effective >> number & 1
        and not (name in _IN_SYS_ADMIN and effective >> _CAP_SYS_ADMIN & 1)
    ]
    if missing:
        raise SystemUnfit(
            f"this process lacks {' and '.join(missing)}",
            "run as root, or privileged in a container"
            if os.geteuid()
            else "give the container these capabilities, or run it privileged",
        )


def _effective_capabilities() -> int:
    """Return the effective capabilities of this process, one bit each."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
