"""Attaching the program of the edge to interfaces, in their driver, by links that are pinned.

Only native mode: what generic mode runs has cost its skb already, and then the programs at the tc
hooks do the same for less. A link lets another build take the place of the program in one step, and
keeps others away; whoever is there before us is left alone. It ends with its interface.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.datapath import bpf
from bpfsvc.datapath.netlink.hooks import DeviceGone
from bpfsvc.datapath.pins import PinRoot, release
from bpfsvc.errors import KernelError

ATTACH_TYPE = 37
"""BPF_XDP."""

_DRIVER_MODE = 1 << 2
"""XDP_FLAGS_DRV_MODE."""

_PREFIX = "xdp-"

_OCCUPIED = {errno.EBUSY, errno.EEXIST}
"""Another program is there in the same mode; or in generic mode, which no native one may join."""


class Declined(KernelError):
    """The driver of an interface does not run the program, for whatever reason."""


class Occupied(Declined):
    """Another XDP program is on the interface; this one may be tried again."""


def attach(root: PinRoot, ifindex: int, program: int) -> None:
    """Put the program on an interface, or in the place of our former one, atomically.

    Raises :class:`Declined`, :class:`DeviceGone`, or ``KernelError``.
    """
    root.links.mkdir(exist_ok=True)
    pin = _pin(root, ifindex)
    if pin.exists() and _update(pin, ifindex, program):
        return
    try:
        link = bpf.link_create(program, ifindex, ATTACH_TYPE, _DRIVER_MODE)
    except OSError as error:
        if not _exists(ifindex):
            raise DeviceGone(ifindex) from error
        if error.errno in _OCCUPIED:
            raise Occupied("another XDP program is there") from error
        if error.errno == errno.EOPNOTSUPP:
            raise Declined("its driver has no native XDP") from error
        # Drivers have reasons of their own: an MTU that is too large, too few queues, LRO.
        raise Declined(f"its driver refuses: {error.strerror}") from error
    try:
        pin.unlink(missing_ok=True)
        bpf.pin(link, pin)
    finally:
        os.close(link)


def _update(pin: Path, ifindex: int, program: int) -> bool:
    """Replace the program; False if there is none any more.

    One that cannot be replaced is taken off: by the tables of a former build, which nobody follows,
    it would send packets astray.
    """
    link = bpf.get(pin)
    try:
        if bpf.link_ifindex(link) != ifindex:
            return False
        if bpf.link_program(link) != bpf.program_id(program):
            bpf.link_update(link, program)
    except OSError as error:
        if error.errno != errno.ENOLINK:
            release(pin)
        return False
    finally:
        os.close(link)
    return True


def attached(root: PinRoot) -> dict[int, int]:
    """Give the interfaces that our program is on, by index, and the ids of the programs."""
    found = {}
    for ifindex, pin in _pins(root):
        link = bpf.get(pin)
        try:
            if bpf.link_ifindex(link) == ifindex:  # else the interface is gone
                found[ifindex] = bpf.link_program(link)
        finally:
            os.close(link)
    return found


def detach(root: PinRoot, ifindex: int) -> bool:
    """Remove our program from an interface; give whether it was there."""
    pin = _pin(root, ifindex)
    if not pin.exists():
        return False
    release(pin)
    return True


def forget_missing(root: PinRoot, present: set[int]) -> None:
    """Unpin the links of interfaces that are no more."""
    for ifindex, pin in _pins(root):
        if ifindex not in present:
            release(pin)


def _exists(ifindex: int) -> bool:
    try:
        socket.if_indextoname(ifindex)
    except OSError:
        return False
    return True


def _pins(root: PinRoot) -> Iterator[tuple[int, Path]]:
    for pin in sorted(root.links.glob(f"{_PREFIX}*")) if root.links.is_dir() else ():
        yield int(pin.name.removeprefix(_PREFIX)), pin


def _pin(root: PinRoot, ifindex: int) -> Path:
    return root.links / f"{_PREFIX}{ifindex}"
