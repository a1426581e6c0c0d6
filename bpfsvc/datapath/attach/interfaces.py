"""Attach to the tc hooks of an interface, by tcx or by clsact.

Links (tcx) are faster, filters in a clsact qdisc work on every kernel. The mode ``auto`` uses tcx
if the kernel has it, but keeps filters on an interface that has them already: the change from one
to the other takes two steps, and packets of a connection would be lost between them.
"""

from __future__ import annotations

from bpfsvc.base.attachment import AttachMode
from bpfsvc.datapath.attach import netkit, tcx
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.hooks import NAME_PREFIX, Filter, Hook


class Attacher:
    """Attaches for one agent. ``priority`` is for filters; links run before all filters."""

    def __init__(self, root: PinRoot, mode: AttachMode, priority: int) -> None:
        self._root = root
        self._mode = mode
        self._priority = priority

    def attach(self, ifindex: int, hook: Hook, program: int, label: str) -> tuple[Filter, ...]:
        """Attach a program to a hook, or replace our former one.

        Returns the filters of other programs that run before it. ``label`` becomes part of the name
        of a filter. Raises what :func:`tc.attach` and :func:`tcx.attach` raise, except that
        ``auto`` uses clsact on a kernel without tcx.
        """
        if self._mode == "tcx" or (self._mode == "auto" and not self._has_filter(ifindex, hook)):
            try:
                tcx.attach(self._root, ifindex, hook, program)
            except tcx.Unsupported:
                if self._mode == "tcx":
                    raise
                self._mode = "clsact"
            else:
                if self._mode == "tcx" and self._has_filter(ifindex, hook):
                    tc.detach(ifindex)
                return ()
        name = f"{NAME_PREFIX}/{hook}/{label}"
        done = tc.attach(ifindex, hook, program, name, self._priority)
        tcx.detach_hook(self._root, ifindex, hook)
        return done.ahead

    def forget_missing(self, present: set[int]) -> None:
        """Remove what belonged to interfaces that no longer exist."""
        tcx.forget_missing(self._root, present)

    def _has_filter(self, ifindex: int, hook: Hook) -> bool:
        return any(attached.ours for attached in tc.attached(ifindex, hook))


def programs(root: PinRoot, filters: tc.Lister, ifindex: int, hook: Hook) -> set[int]:
    """Return the ids of our programs on a hook; two only while tcx replaces clsact, or back."""
    ids = {attached.program for attached in filters(ifindex, hook) if attached.ours}
    return (ids | {tcx.program_id(root, ifindex, hook)}) - {0}


def is_shared(root: PinRoot, filters: tc.Lister, ifindex: int) -> bool:
    """True if programs or filters of others are on a hook of an interface.

    Raises :class:`~bpfsvc.datapath.netlink.hooks.DeviceGone` or ``KernelError``.
    """
    return any(
        set(tcx.programs(ifindex, hook)) - {tcx.program_id(root, ifindex, hook)}
        or netkit.programs(ifindex, hook)
        or any(not attached.ours for attached in filters(ifindex, hook))
        for hook in Hook
    )


def detach(root: PinRoot, ifindex: int) -> bool:
    """Remove all that is ours from an interface; True if there was anything."""
    linked = tcx.detach(root, ifindex)
    return tc.detach(ifindex) or linked
