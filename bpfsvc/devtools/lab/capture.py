"""The frames seen on one interface of a namespace.

It uses a packet socket only: the kernel keeps the frames until they are read, so there is no
thread and no process to wait for. tc programs act at ingress after this tap and at
egress before it: a capture shows the packets of the wire.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched

_ETH_P_ALL = 3
_PACKET_OUTGOING = 4
_SO_RCVBUFFORCE = 33
_SOL_PACKET, _PACKET_AUXDATA = 263, 8
_TP_STATUS_CSUMNOTREADY = 8
_BUFFER = 16 << 20


class Frame(NamedTuple):
    """One frame, from the Ethernet header on (an L3 device has none).

    ``outgoing``: leaves by the interface. ``partial``: its transport checksum is not yet filled in.
    """

    data: bytes
    outgoing: bool
    partial: bool


class Capture:
    """A context manager that collects the frames of ``interface`` from its start."""

    def __init__(self, namespace: Namespace, interface: str) -> None:
        self._place, self._interface = namespace, interface
        self._seen: list[Frame] = []

    def __enter__(self) -> Self:
        # Protocol 0 receives nothing before bind() has named the interface.
        self._socket = self._place.socket(socket.AF_PACKET, socket.SOCK_RAW)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        self._socket.bind((self._interface, _ETH_P_ALL))
        self._socket.setblocking(False)
        # Not select(), which fails in processes with more than a thousand open files.
        self._arrivals = select.poll()
        self._arrivals.register(self._socket, select.POLLIN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.frames()
        self._socket.close()

    def frames(self) -> list[Frame]:
        """Return every frame seen so far (also after the end)."""
        while self._socket.fileno() >= 0:
            try:
                data, control, _, address = self._socket.recvmsg(1 << 17, 256)
            except BlockingIOError:
                break
            status = next(
                (
                    struct.unpack_from("=I", body)[0]
                    for level, kind, body in control
                    if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA)
                ),
                0,
            )
            self._seen.append(
                Frame(data, address[2] == _PACKET_OUTGOING, bool(status & _TP_STATUS_CSUMNOTREADY))
            )
        return list(self._seen)

    def wait(self, wanted: Callable[[Frame], bool], timeout: float = 2.0) -> Frame:
        """Return the first frame that is ``wanted``; ``TimeoutError`` if there is none in time."""
        deadline = time.monotonic() + stretched(timeout)
        while True:
            for frame in self.frames():
                if wanted(frame):
                    return frame
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"no such frame among {len(self._seen)} on {self._interface}")
            self._arrivals.poll(left * 1000)
