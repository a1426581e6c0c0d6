"""Attaching the program of the edge to interfaces, in their driver, by links that are pinned.

Only native mode: what generic mode runs has cost its skb already, and then the programs at the tc
hooks do the same for less. A link lets another build take the place of the program in one step, and
keeps others away; whoever is there before us is left alone. It ends with its interface.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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

_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_GET_FLAGS, _GET_CHANNELS = 0x25, 0x3C
"""ETHTOOL_GFLAGS, ETHTOOL_GCHANNELS (``linux/ethtool.h``)."""


class Declined(KernelError):
    """The driver of an interface does not run the program, for whatever reason.

    It may have taken the link down to find that out, and up again: Intel's ice counts its queues
    last (``ice_xdp_setup_prog``). So nobody should ask again without a reason.
    """


class Occupied(Declined):
    """Another XDP program is in the way, mostly. That the kernel finds before it asks a driver."""


class Conditions(NamedTuple):
    """What drivers give as reasons to refuse, as far as it is easily known of an interface.

    ``mtu`` in bytes; ``queues`` in use: those that receive, send, and do both; ``offloads``: bits
    of ``enum ethtool_flags``, LRO among them. The last two are empty and 0 where a driver does not
    tell. None says whether the link is up.
    """

    mtu: int
    queues: tuple[int, ...]
    offloads: int


def conditions(name: str) -> Conditions:
    """Look at an interface; raises ``OSError`` if there is none of that name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        answer = fcntl.ioctl(control, _SIOCGIFMTU, struct.pack("=16s24x", name.encode()))
        (mtu,) = struct.unpack_from("=16xi", answer)
        # The command; four limits; how many receive, send, do something else, and do both.
        channels = _ethtool(control, name, _GET_CHANNELS, 9)
        flags = _ethtool(control, name, _GET_FLAGS, 2)
    queues = (channels[5], channels[6], channels[8]) if channels else ()
    return Conditions(mtu, queues, flags[1] if flags else 0)


def _ethtool(control: socket.socket, name: str, command: int, size: int) -> tuple[int, ...]:
    """Ask a driver for a structure of ``size`` words; () if it does not answer."""
    words = (ctypes.c_uint32 * size)(command)
    try:
        fcntl.ioctl(
            control, _SIOCETHTOOL, struct.pack("@16sP16x", name.encode(), ctypes.addressof(words))
        )
    except OSError:
        return ()
    return tuple(words)


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
    bpf.keep_link(link, pin)


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
