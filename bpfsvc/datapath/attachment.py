"""Attaching to the hooks of an interface, by whichever way this kernel has.

tcx links are the faster way, filters in a clsact qdisc the older one. ``auto`` takes tcx where
there is tcx, but stays with filters on an interface that has them already: changing the way cannot
be done in one step, and a connection would notice.
"""

from __future__ import annotations

from typing import Literal

from bpfsvc.datapath import census, tcx
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.hooks import NAME_PREFIX, Filter, Hook
from bpfsvc.datapath.pins import PinRoot

Way = Literal["auto", "tcx", "clsact"]
WAYS: tuple[Way, ...] = ("auto", "tcx", "clsact")


class Attacher:
    """Attaches for one agent. ``priority`` is that of filters; links come before all filters."""

    def __init__(self, root: PinRoot, way: Way, priority: int) -> None:
        self._root = root
        self._way = way
        self._priority = priority

    def attach(self, ifindex: int, hook: Hook, program: int, label: str) -> tuple[Filter, ...]:
        """Put a program on a hook or in the place of our former one; give who comes before it.

        ``label`` ends up in the name of a filter. Raises what :func:`tc.attach` and
        :func:`tcx.attach` raise, except that ``auto`` makes do without tcx.
        """
        if self._way == "tcx" or (self._way == "auto" and not self._has_filter(ifindex, hook)):
            try:
                tcx.attach(self._root, ifindex, hook, program)
            except tcx.Unsupported:
                if self._way == "tcx":
                    raise
                self._way = "clsact"
            else:
                if self._way == "tcx" and self._has_filter(ifindex, hook):
                    tc.detach(ifindex)
                return ()
        name = f"{NAME_PREFIX}/{hook}/{label}"
        done = tc.attach(ifindex, hook, program, name, self._priority)
        tcx.detach_hook(self._root, ifindex, hook)
        return done.ahead

    def forget_missing(self, present: set[int]) -> None:
        """Let go of what belonged to interfaces that are no more."""
        tcx.forget_missing(self._root, present)

    def _has_filter(self, ifindex: int, hook: Hook) -> bool:
        return any(each.ours for each in tc.attached(ifindex, hook))


def programs(root: PinRoot, ifindex: int, hook: Hook) -> set[int]:
    """Give the ids of our programs on a hook; more than one only while the way changes."""
    found = {each.program for each in tc.attached(ifindex, hook) if each.ours}
    return (found | {tcx.program_id(root, ifindex, hook)}) - {0}


def is_shared(root: PinRoot, ifindex: int) -> bool:
    """Whether somebody else's programs or filters are on a hook of an interface.

    Raises :class:`~bpfsvc.datapath.netlink.hooks.DeviceGone` or ``KernelError``.
    """
    return any(
        set(census.tcx_programs(ifindex, hook)) - {tcx.program_id(root, ifindex, hook)}
        or any(not each.ours for each in tc.attached(ifindex, hook))
        for hook in Hook
    )


def detach(root: PinRoot, ifindex: int) -> bool:
    """Remove all that is ours from an interface; give whether there was anything."""
    linked = tcx.detach(root, ifindex)
    return tc.detach(ifindex) or linked
