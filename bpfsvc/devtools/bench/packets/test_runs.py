"""Test runs of programs by the kernel: timed, or on frames as a driver receives them.

The test runs of :mod:`bpfsvc.datapath.syscall` ask what a program does to one packet; these ask how
long it takes (``repeat``), or have it send (``live``).
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

from bpfsvc.datapath import syscall

SCHED_CLS, XDP = 3, 6
"""Types of programs (``enum bpf_prog_type``)."""

_LIVE_FRAMES = 1 << 1
"""BPF_F_TEST_XDP_LIVE_FRAMES, since Linux 5.18."""

_REQUEST = struct.Struct("=IIIIQQIIIIQQIII4x")
"""The part of ``union bpf_attr`` that belongs to BPF_PROG_TEST_RUN."""
_ANSWER = struct.Struct("=4xI4xI20xI")
"""Its results: verdict, size of the packet, duration."""

_ROOM = 64


class Timed(NamedTuple):
    """The result of a run: the last verdict, the packet as it was then, ns per time."""

    verdict: int
    packet: bytes
    nanoseconds: int


def skb_context(interface: int) -> bytes:
    """Return a ``struct __sk_buff`` for a packet of an interface."""
    return struct.pack("=40xI", interface)


def xdp_context(size: int, interface: int = 0) -> bytes:
    """Return a ``struct xdp_md`` for a packet of ``size`` bytes; 0: the interface is loopback."""
    return struct.pack("=IIIIII", 0, size, 0, interface, 0, 0)


def repeat(program: int, packet: bytes, times: int, context: bytes = b"") -> Timed:
    """Run a program ``times`` on a packet, each time on the result of the time before."""
    return _run(program, packet, times, context, room=len(packet) + _ROOM)


def live(program: int, frame: bytes, times: int, interface: int, batch: int = 64) -> int:
    """Run an XDP program on ``times`` frames and carry its verdicts out; return ns per frame.

    ``interface``, in the caller's namespace, is where they seem to come from, and where XDP_TX
    sends them. A frame is reused as its receiver left it: only at first it is ``frame``. The time
    includes what interrupts of this core do meanwhile, and so all that happens to the frames on it;
    it stops while other threads have the core.
    """
    context = xdp_context(len(frame), interface)
    return _run(program, frame, times, context, flags=_LIVE_FRAMES, batch=batch).nanoseconds


def _run(
    program: int,
    packet: bytes,
    times: int,
    context: bytes,
    *,
    room: int = 0,
    flags: int = 0,
    batch: int = 0,
) -> Timed:
    given = ctypes.create_string_buffer(packet, len(packet))
    left = ctypes.create_string_buffer(room)
    about = ctypes.create_string_buffer(context, len(context))
    packets = (ctypes.addressof(given), ctypes.addressof(left) if room else 0)
    contexts = (len(context), 0, ctypes.addressof(about) if context else 0, 0)
    request = _REQUEST.pack(
        program, 0, len(packet), room, *packets, times, 0, *contexts, flags, 0, batch
    )
    attributes = ctypes.create_string_buffer(request, _REQUEST.size)
    syscall.call(syscall.PROG_TEST_RUN, attributes)
    verdict, size, duration = _ANSWER.unpack_from(attributes)
    return Timed(verdict, left.raw[:size] if room else b"", int(duration))
