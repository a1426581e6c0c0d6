"""The capabilities of an agent, and the check of those that it cannot start without.

``deploy/`` grants exactly these, and docs/security.md lists them; ``tests/deploy`` holds both
against this table. ``tests/lab/test_least_rights.py`` takes each away.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import SystemUnfit


class Capability(NamedTuple):
    """A right of an agent, by its name and number in linux/capability.h.

    * ``use``: what the agent does with it.
    * ``is_required``: without it no agent starts; without another one an agent does less, and its
      log says so.
    * ``before``: only older versions of Linux ask for it; None if all versions do.
    """

    name: str
    number: int
    use: str
    is_required: bool = False
    before: tuple[int, int] | None = None


CAPABILITIES = (
    Capability("CAP_BPF", 39, "loads programs and maps", is_required=True),
    Capability(
        "CAP_NET_ADMIN",
        12,
        "attaches programs, reads addresses and conntrack, closes sockets",
        is_required=True,
    ),
    Capability("CAP_PERFMON", 38, "loads programs that compare pointers", is_required=True),
    Capability("CAP_NET_RAW", 13, "sends resets for Services that ask for them"),
    Capability("CAP_SYS_PTRACE", 19, "moves connected UDP sockets of other users' processes"),
    Capability("CAP_SYS_RESOURCE", 24, "lifts the limit of locked memory", before=(5, 11)),
)

_CAP_SYS_ADMIN = 21
_IN_SYS_ADMIN = ("CAP_PERFMON", "CAP_BPF")
"""What CAP_SYS_ADMIN includes."""


def require_privileges() -> None:
    """Raise :class:`SystemUnfit` unless this process may load and attach programs."""
    effective = _effective_capabilities()
    missing = [
        capability.name
        for capability in CAPABILITIES
        if capability.is_required
        and not effective >> capability.number & 1
        and not (capability.name in _IN_SYS_ADMIN and effective >> _CAP_SYS_ADMIN & 1)
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
