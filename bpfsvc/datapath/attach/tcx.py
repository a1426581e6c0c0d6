"""Attach to the tc hooks by links (tcx, Linux 6.6 and later).

A packet reaches a tcx program after a few instructions, where a filter in a clsact qdisc costs a
walk through the classifiers: on a small machine some 100 ns for each hook, four times the program's
own work on a packet that concerns no Service.

Older kernels have no tcx; for them there is :mod:`bpfsvc.datapath.netlink.tc`.
"""

from __future__ import annotations

import errno
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath.attach import links
from bpfsvc.datapath.maps.pins import PinRoot, release
from bpfsvc.datapath.netlink.hooks import DeviceGone, Hook

ATTACH_TYPES = {Hook.INGRESS: 46, Hook.EGRESS: 47}
"""BPF_TCX_INGRESS, BPF_TCX_EGRESS."""

_PREFIX = "tcx"

_NO_TCX = {errno.EINVAL, errno.EOPNOTSUPP}

_NONE_FOUND = {errno.EINVAL, errno.ENODEV, errno.ENOENT, errno.EPERM, errno.EACCES}
"""No tcx, no such interface, no program, no permission."""


class Unsupported(KernelError):
    """This kernel has no tcx."""


def attach(root: PinRoot, ifindex: int, hook: Hook, program: int) -> None:
    """Attach a program to a hook, or replace our former one, atomically.

    Raises :class:`Unsupported`, :class:`DeviceGone`, or ``KernelError``.
    """

    def explain(error: OSError) -> BpfsvcError:
        if error.errno == errno.ENODEV:
            return DeviceGone(ifindex)
        if error.errno in _NO_TCX:
            return Unsupported("this kernel has no tcx")
        return KernelError(f"cannot attach to interface {ifindex}: {error.strerror}")

    pin = _pin(root, ifindex, hook)
    if pin.exists() and not program_id(root, ifindex, hook):
        release(pin)
    links.attach(pin, ifindex, program, ATTACH_TYPES[hook], 0, explain)


def program_id(root: PinRoot, ifindex: int, hook: Hook) -> int:
    """Return the id of our program on a hook; 0 if there is none.

    A link may be one to an interface of another network namespace, with the same index.
    """
    program = links.program_id(_pin(root, ifindex, hook), ifindex)
    return program if program and program in programs(ifindex, hook) else 0


def programs(ifindex: int, hook: Hook) -> tuple[int, ...]:
    """Return the ids of all tcx programs on a hook, in the order in which they run."""
    return links.programs(ifindex, ATTACH_TYPES[hook], _NONE_FOUND)


def detach(root: PinRoot, ifindex: int) -> bool:
    """Remove our programs from an interface, if it still exists; True if there were any."""
    return sum(detach_hook(root, ifindex, hook) for hook in Hook) > 0


def detach_hook(root: PinRoot, ifindex: int, hook: Hook) -> bool:
    """Remove our program from one hook; True if there was one."""
    return links.detach(_pin(root, ifindex, hook))


def forget_missing(root: PinRoot, present: set[int]) -> None:
    """Remove the pins of interfaces that no longer exist."""
    links.forget_missing(root, _PREFIX, present)


def _pin(root: PinRoot, ifindex: int, hook: Hook) -> Path:
    return root.links / f"{_PREFIX}-{hook}-{ifindex}"
