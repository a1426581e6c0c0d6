"""Whether this process may do what an agent does, asked before anything is touched."""

from __future__ import annotations

import os
from pathlib import Path

from bpfsvc.errors import SystemUnfit

_NEEDED = {"CAP_NET_ADMIN": 12, "CAP_PERFMON": 38, "CAP_BPF": 39}
"""Capability numbers of linux/capability.h."""

_CAP_SYS_ADMIN = 21
_ADMINS_TOO = ("CAP_PERFMON", "CAP_BPF")
"""What CAP_SYS_ADMIN includes."""


def require_privileges() -> None:
    """Raise :class:`SystemUnfit` unless this process may load and attach programs."""
    effective = _effective()
    missing = [
        name
        for name, number in _NEEDED.items()
        if not effective >> number & 1
        and not (name in _ADMINS_TOO and effective >> _CAP_SYS_ADMIN & 1)
    ]
    if missing:
        raise SystemUnfit(
            f"this process lacks {' and '.join(missing)}",
            "run as root, or privileged in a container"
            if os.geteuid()
            else "give the container these capabilities, or run it privileged",
        )


def _effective() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0
