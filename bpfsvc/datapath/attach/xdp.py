"""Attach the XDP program to interfaces, in their drivers, by links that are pinned.

Only native mode: a packet in generic mode has cost its skb already, and then the programs at the tc
hooks do the same for less. While our link is there, no other program can attach; and if another
program was there first, it is left alone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import socket
import struct
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import BpfsvcError, KernelError
from bpfsvc.datapath.attach import links
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.hooks import DeviceGone

ATTACH_TYPE = 37
"""BPF_XDP."""

_DRIVER_MODE = 1 << 2
"""XDP_FLAGS_DRV_MODE."""

_PREFIX = "xdp"

_OCCUPIED = {errno.EBUSY, errno.EEXIST}
"""Another program is there, in the same mode or in generic mode, which excludes native mode."""

_SIOCGIFMTU, _SIOCETHTOOL = 0x8921, 0x8946
_GET_FLAGS, _GET_CHANNELS = 0x25, 0x3C
"""ETHTOOL_GFLAGS, ETHTOOL_GCHANNELS (``linux/ethtool.h``)."""


class Declined(KernelError):
    """The driver of an interface does not run the program.

    It may have taken the link down and up again to find that out: Intel's ice counts its queues
    last (``ice_xdp_setup_prog``). So do not ask again before the conditions change.
    """


class Occupied(Declined):
    """Another XDP program is there, as a rule; the kernel finds that before it asks the driver."""


class XdpConditions(NamedTuple):
    """The properties of an interface for which drivers refuse XDP, as far as they can be read.

    ``mtu`` in bytes; ``queues`` in use: those that receive, send, and do both; ``offloads``: bits
    of ``enum ethtool_flags``, LRO among them. The last two are empty and 0 if the driver does not
    report them. If the link is up is not part of it.
    """

    mtu: int
    queues: tuple[int, ...]
    offloads: int


def conditions(name: str) -> XdpConditions:
    """Return the conditions of an interface; ``OSError`` if there is none of that name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        answer = fcntl.ioctl(control, _SIOCGIFMTU, struct.pack("=16s24x", name.encode()))
        (mtu,) = struct.unpack_from("=16xi", answer)
        # The command; four limits; queues that receive, send, do something else, and do both.
        channels = _ethtool(control, name, _GET_CHANNELS, 9)
        flags = _ethtool(control, name, _GET_FLAGS, 2)
    queues = (channels[5], channels[6], channels[8]) if channels else ()
    return XdpConditions(mtu, queues, flags[1] if flags else 0)


def _ethtool(control: socket.socket, name: str, command: int, size: int) -> tuple[int, ...]:
    """Return a structure of ``size`` words from a driver; () if it does not support that."""
    words = (ctypes.c_uint32 * size)(command)
    try:
        fcntl.ioctl(
            control, _SIOCETHTOOL, struct.pack("@16sP16x", name.encode(), ctypes.addressof(words))
        )
    except OSError:
        return ()
    return tuple(words)


def attach(root: PinRoot, ifindex: int, program: int) -> None:
    """Attach the program to an interface, or replace our former one, atomically.

    Raises :class:`Declined`, :class:`DeviceGone`, or ``KernelError``.
    """

    def explain(error: OSError) -> BpfsvcError:
        if not _exists(ifindex):
            return DeviceGone(ifindex)
        if error.errno in _OCCUPIED:
            return Occupied("another XDP program is there")
        if error.errno == errno.EOPNOTSUPP:
            return Declined("its driver has no native XDP")
        # Drivers have reasons of their own: an MTU that is too large, too few queues, LRO.
        return Declined(f"its driver refuses: {error.strerror}")

    links.attach(_pin(root, ifindex), ifindex, program, ATTACH_TYPE, _DRIVER_MODE, explain)


def attached(root: PinRoot) -> dict[int, int]:
    """Return the ids of our programs, by the index of the interface."""
    programs = {
        ifindex: links.program_id(pin, ifindex) for ifindex, pin in links.pins(root, _PREFIX)
    }
    return {ifindex: program for ifindex, program in programs.items() if program}


def detach(root: PinRoot, ifindex: int) -> bool:
    """Remove our program from an interface; True if there was one."""
    return links.detach(_pin(root, ifindex))


def forget_missing(root: PinRoot, present: set[int]) -> None:
    """Remove the pins of interfaces that no longer exist."""
    links.forget_missing(root, _PREFIX, present)


def _exists(ifindex: int) -> bool:
    try:
        socket.if_indextoname(ifindex)
    except OSError:
        return False
    return True


def _pin(root: PinRoot, ifindex: int) -> Path:
    return root.links / f"{_PREFIX}-{ifindex}"
