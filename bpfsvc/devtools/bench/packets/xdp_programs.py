"""The XDP programs of the suite ``frames``: one sends, one counts or sends frames back."""

from __future__ import annotations

import os
import socket
import struct
from typing import Self

from bpfsvc.datapath import syscall
from bpfsvc.datapath.instructions import R0, R1, R2, R3, R4, R6, Code
from bpfsvc.datapath.loader.creation import create_map, load_program
from bpfsvc.datapath.maps.layout import MapLayout, Record
from bpfsvc.devtools.bench.packets.flows import LINK, PAYLOAD, Flow
from bpfsvc.devtools.bench.packets.test_runs import XDP

DROP, PASS, SEND_BACK = 1, 2, 3
"""Verdicts (``enum xdp_action``)."""

ATTACH_XDP = 37
_RANDOM = 7
"""The helper bpf_get_prandom_u32."""

_DATA, _DATA_END = 0, 4
"""In ``struct xdp_md``."""
_ETHERTYPE, _PROTOCOL, _SOURCE_PORT, _DESTINATION_PORT, _PAYLOAD = 12, 23, 34, 36, 42
"""In a frame with UDP over IPv4 without options."""

_COUNTS = struct.Struct("=QQ")


def payload(port: int) -> bytes:
    """Return the payload of what comes from a port: the sum of both is the same for all ports."""
    return struct.pack("!H", port ^ 0xFFFF) + PAYLOAD[2:]


def sender(flow: Flow, ports: int, link: bytes = LINK) -> bytes:
    """Return the code that turns any frame as long into one of ``flow``, UDP over IPv4.

    It sends the frame. The source port is a random one of ``ports``, a power of two of them, from
    that of the flow on. All of a frame is written anew, because the receiver may have changed it.
    """
    port = flow.source.port
    template = flow.frame(link=link, payload=payload(port))
    code = Code()
    _open(code, len(template), "short")
    code.write(R2, template)
    code.move(R6, R2)
    code.call(_RANDOM)
    code.calculate(R0, "&", ports - 1)
    code.calculate(R0, "+", port)
    code.network_order(R0)
    code.store(R6, _SOURCE_PORT, R0, 2)
    code.calculate(R0, "^", 0xFFFF)
    code.store(R6, _PAYLOAD, R0, 2)
    code.leave(SEND_BACK)
    code.mark("short")
    code.leave(DROP)
    return code.finish()


def counter(counts: int, port: int, verdict: int) -> bytes:
    """Return the code that counts UDP over IPv4, to a port and to others, and gives ``verdict``.

    ``counts``: descriptor of a map. A frame that is sent back goes to its sender. All else is
    passed on.
    """
    code = Code()
    _open(code, _PAYLOAD, "else")
    code.load(R4, R2, _ETHERTYPE, 2)
    code.if_unlike(R4, socket.htons(0x0800), "else")
    code.load(R4, R2, _PROTOCOL, 1)
    code.if_unlike(R4, socket.IPPROTO_UDP, "else")
    if verdict == SEND_BACK:
        for half in (0, 2, 4):
            code.load(R3, R2, half, 2)
            code.load(R4, R2, half + 6, 2)
            code.store(R2, half, R4, 2)
            code.store(R2, half + 6, R3, 2)
    code.load(R3, R2, _DESTINATION_PORT, 2)
    code.if_unlike(R3, socket.htons(port), "other")
    code.increment(counts, 0)
    code.leave(verdict)
    code.mark("other")
    code.increment(counts, 8)
    code.leave(verdict)
    code.mark("else")
    code.leave(PASS)
    return code.finish()


def _open(code: Code, size: int, otherwise: str) -> None:
    """Make R2 point to the frame, of which ``size`` bytes can be read."""
    code.load(R2, R1, _DATA, 4)
    code.load(R3, R1, _DATA_END, 4)
    code.move(R4, R2)
    code.calculate(R4, "+", size)
    code.if_more(R4, R3, otherwise)


def load(name: str, code: bytes) -> int:
    """Load an XDP program and return its descriptor."""
    return load_program(name, XDP, 0, code, "Apache-2.0")


class Counter:
    """A context manager: a counter on an interface, given by its index, of this namespace."""

    def __init__(self, interface: int, port: int, verdict: int = DROP) -> None:
        layout = MapLayout("array", Record((("", "4x"),)), Record((("", "16x"),)), 1, 0)
        self._map = syscall.Map(create_map("counts", layout), "counts")
        program = load("counter", counter(self._map.fd, port, verdict))
        self._link = syscall.link_create(program, interface, ATTACH_XDP)
        os.close(program)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        syscall.link_detach(self._link)
        os.close(self._link)
        self._map.close()

    def seen(self) -> tuple[int, int]:
        """Return the frames so far: to the port, and to others."""
        to_port, others = _COUNTS.unpack(self._map.lookup(bytes(4)) or b"")
        return int(to_port), int(others)
