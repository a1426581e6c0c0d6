"""Programs run by the kernel on packets that nobody sent: timed, or as frames of a driver.

The test runs of :mod:`bpfsvc.datapath.bpf` ask what a program does to one packet; these ask how
long it takes (``repeat``), or let it send (``live``).
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

from bpfsvc.datapath import bpf

SCHED_CLS, XDP = 3, 6
"""Types of programs (``enum bpf_prog_type``)."""

_LIVE_FRAMES = 1 << 1
"""BPF_F_TEST_XDP_LIVE_FRAMES, since Linux 5.18."""

_REQUEST = struct.Struct("=IIIIQQIIIIQQIII4x")
"""The part of ``union bpf_attr`` that belongs to BPF_PROG_TEST_RUN."""
_ANSWER = struct.Struct("=4xI4xI")
_DURATION = struct.Struct("=36xI")

_ROOM = 64


class Timed(NamedTuple):
    """What came of a run: the last verdict, the packet as it was then, ns per time."""

    verdict: int
    packet: bytes
    nanoseconds: int


def skb_context(interface: int) -> bytes:
    """Give a ``struct __sk_buff`` that says by which interface a packet comes or goes."""
    return struct.pack("=40xI", interface)


def xdp_context(size: int, interface: int = 0) -> bytes:
    """Give a ``struct xdp_md`` for a packet of ``size`` bytes; 0: the interface is loopback."""
    return struct.pack("=IIIIII", 0, size, 0, interface, 0, 0)


def repeat(program: int, packet: bytes, times: int, context: bytes = b"") -> Timed:
    """Run a program ``times`` on a packet, each time on what the time before left of it."""
    given = ctypes.create_string_buffer(packet, len(packet))
    left = ctypes.create_string_buffer(len(packet) + _ROOM)
    attributes = _call(program, given, times, context, left=left)
    verdict, size = _ANSWER.unpack_from(attributes)
    (duration,) = _DURATION.unpack_from(attributes)
    return Timed(verdict, left.raw[:size], duration)


def live(program: int, frame: bytes, times: int, interface: int, batch: int = 64) -> int:
    """Let an XDP program see ``times`` frames and have what it decides done; give ns per frame.

    ``interface``, in the caller's namespace, is where they seem to come from, and where XDP_TX
    sends them. A program finds in a frame what it, or whoever received it, last left there: only
    the first times it is ``frame``. The time includes what interrupts of this core do meanwhile,
    and so all that becomes of the frames on it; it stops where others are given the core.
    """
    given = ctypes.create_string_buffer(frame, len(frame))
    context = xdp_context(len(frame), interface)
    attributes = _call(program, given, times, context, flags=_LIVE_FRAMES, batch=batch)
    return int(_DURATION.unpack_from(attributes)[0])


def _call(
    program: int,
    given: ctypes.Array[ctypes.c_char],
    times: int,
    context: bytes,
    *,
    left: ctypes.Array[ctypes.c_char] | None = None,
    flags: int = 0,
    batch: int = 0,
) -> bytes:
    about = ctypes.create_string_buffer(context, len(context))
    attributes = ctypes.create_string_buffer(
        _REQUEST.pack(
            program,
            0,
            len(given),
            len(left) if left is not None else 0,
            ctypes.addressof(given),
            ctypes.addressof(left) if left is not None else 0,
            times,
            0,
            len(context),
            0,
            ctypes.addressof(about) if context else 0,
            0,
            flags,
            0,
            batch,
        ),
        _REQUEST.size,
    )
    bpf.call(bpf.PROG_TEST_RUN, attributes)
    return attributes.raw
