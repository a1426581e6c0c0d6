"""Attaching to the tc hooks by links (tcx, Linux 6.6 and later).

A packet meets a tcx program after a few instructions, where a filter in a clsact qdisc costs a walk
through the classifiers: on a small machine some 100 ns a hook, four times the program's own work on
a packet that concerns no Service. A link also lets a program take the place of another in one step,
and is nobody's to remove by accident. It ends with its interface, or with its last reference: so
it is pinned.

Older kernels have none of this: then :mod:`bpfsvc.datapath.netlink.tc` does.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from bpfsvc.datapath import bpf
from bpfsvc.datapath.netlink.hooks import DeviceGone, Hook
from bpfsvc.datapath.pins import PinRoot, release
from bpfsvc.errors import KernelError

ATTACH_TYPES = {Hook.INGRESS: 46, Hook.EGRESS: 47}
"""BPF_TCX_INGRESS, BPF_TCX_EGRESS."""

_PREFIX = "tcx-"

_UNKNOWN = {errno.EINVAL, errno.EOPNOTSUPP}


class Unsupported(KernelError):
    """This kernel has no tcx."""


def attach(root: PinRoot, ifindex: int, hook: Hook, program: int) -> None:
    """Put a program on a hook, or in the place of our former one, atomically.

    Raises :class:`Unsupported`, :class:`DeviceGone`, or ``KernelError``.
    """
    root.links.mkdir(exist_ok=True)
    pin = _pin(root, ifindex, hook)
    if pin.exists() and _update(pin, ifindex, program):
        return
    try:
        link = bpf.link_create(program, ifindex, ATTACH_TYPES[hook])
    except OSError as error:
        if error.errno == errno.ENODEV:
            raise DeviceGone(ifindex) from error
        if error.errno in _UNKNOWN:
            raise Unsupported("this kernel has no tcx") from error
        raise KernelError(f"cannot attach to interface {ifindex}: {error.strerror}") from error
    bpf.keep_link(link, pin)


def _update(pin: Path, ifindex: int, program: int) -> bool:
    """Replace the program; False if the link ended with an interface of that number."""
    link = bpf.get(pin)
    try:
        if bpf.link_ifindex(link) != ifindex:
            return False
        bpf.link_update(link, program)
    except OSError as error:
        if error.errno == errno.ENOLINK:
            return False
        raise KernelError(f"cannot replace the program at {pin}: {error.strerror}") from error
    finally:
        os.close(link)
    return True


def program_id(root: PinRoot, ifindex: int, hook: Hook) -> int:
    """Give the id of our program on a hook; 0 if there is none."""
    try:
        link = bpf.get(_pin(root, ifindex, hook))
    except FileNotFoundError:
        return 0
    try:
        return bpf.link_program(link) if bpf.link_ifindex(link) == ifindex else 0
    finally:
        os.close(link)


def detach(root: PinRoot, ifindex: int) -> bool:
    """Remove our programs from an interface, if it is still there; give whether there were any."""
    return sum(detach_hook(root, ifindex, hook) for hook in Hook) > 0


def detach_hook(root: PinRoot, ifindex: int, hook: Hook) -> bool:
    """Remove our program from one hook; give whether there was one."""
    pin = _pin(root, ifindex, hook)
    if not pin.exists():
        return False
    release(pin)
    return True


def forget_missing(root: PinRoot, present: set[int]) -> None:
    """Unpin the links of interfaces that are no more."""
    for pin in root.links.glob(f"{_PREFIX}*") if root.links.is_dir() else ():
        if int(pin.name.rpartition("-")[2]) not in present:
            release(pin)


def _pin(root: PinRoot, ifindex: int, hook: Hook) -> Path:
    return root.links / f"{_PREFIX}{hook}-{ifindex}"
