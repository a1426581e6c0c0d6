"""How programs are attached to interfaces: the values that configuration and kernel side share."""

from __future__ import annotations

from typing import Literal, get_args

AttachMode = Literal["auto", "tcx", "clsact"]
"""By tcx links, by filters in a clsact qdisc, or ``auto``: tcx where the kernel has it."""

ATTACH_MODES: tuple[AttachMode, ...] = get_args(AttachMode)

PRIORITY = 0xB5
"""Default priority of our tc filters: far from 1, where most programs are attached, and before the
priorities that the kernel assigns itself (49152 and below)."""
