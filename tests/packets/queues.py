"""The queues of closed connections (``bpf/maps/closed_flows.h``), for tests to look into."""

from __future__ import annotations

import ctypes
import struct
import time

from bpfsvc.datapath import syscall
from bpfsvc.datapath.bpf_map import Map

CLOSED, TIME_WAIT = QUEUES = ("closed_flows", "time_wait_flows")

_TIME_SHIFT = 28
"""CLOSED_TIME_SHIFT: units of ns."""

_TIME = struct.Struct("=H")
"""The end of a flow, which holds the time in a queue."""


def put(queue: Map, flow: bytes, seconds: float = 0.0) -> None:
    """Put the key of an entry into a queue, as one of a connection that was closed long ago."""
    units = time.monotonic_ns() - int(seconds * 1e9) >> _TIME_SHIFT
    _call(syscall.MAP_UPDATE, queue, flow[: -_TIME.size] + _TIME.pack(units & 0xFFFF))


def take_all(queue: Map) -> list[bytes]:
    """Empty a queue; return the keys of its entries, the first one first."""
    flows: list[bytes] = []
    while True:
        try:
            flow = _call(syscall.MAP_LOOKUP_AND_DELETE, queue, bytes(queue.value_size))
        except FileNotFoundError:
            return flows
        flows.append(flow[: -_TIME.size] + bytes(_TIME.size))


def age(queue: Map, seconds: float) -> int:
    """Make all flows of a queue ones that were closed so long ago; return how many there are."""
    flows = take_all(queue)
    for flow in flows:
        put(queue, flow, seconds)
    return len(flows)


def _call(command: int, queue: Map, value: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(value, len(value))
    syscall.call(command, struct.pack("=I4xQQQ", queue.fd, 0, ctypes.addressof(buffer), 0))
    return buffer.raw
