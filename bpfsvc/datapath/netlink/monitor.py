"""Tell when the interfaces, their addresses or the default routes of a node change.

What the kernel announces is taken only as a sign that something changed; then everything is listed
anew and compared with what was known. Announcements get lost when many come at once (the socket's
buffer overruns) and arrive half-way through a change; a fresh list is right either way, and a
loss is one more sign. The subscription begins before the first list, so nothing slips through
between the two.

The first sign is acted on at once. While pods come and go in numbers, lists are spaced so that
following them costs no more than half a core.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from bpfsvc.datapath.netlink import messages as wire
from bpfsvc.datapath.netlink.conversation import Conversation, DumpInterrupted
from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.datapath.netlink.network import NetworkReader

_SPACING = 0.02  # seconds
_GROUPS = 0x1 | 0x10 | 0x40 | 0x100 | 0x400  # RTMGRP_LINK, IPV4_IFADDR, _ROUTE, IPV6_ the same
_HEADER = struct.Struct("=IHHII")


class Monitor:
    """Follows the network namespace of the thread that calls :meth:`start`.

    ``on_change`` is called in the monitor's own thread with the new state, never twice with the
    same. It should return soon. Whatever ends the thread before :meth:`stop` is told to
    ``on_failure``.
    """

    def __init__(
        self, on_change: Callable[[Network], None], on_failure: Callable[[Exception], None]
    ) -> None:
        self._on_change = on_change
        self._on_failure = on_failure
        self._signs = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            socket.NETLINK_ROUTE,
        )
        self._talk = Conversation()
        self._reader = NetworkReader(self._talk)
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._run, name="interfaces", daemon=True)
        self._known: Network

    @property
    def alive(self) -> bool:
        """Whether changes are being followed."""
        return self._thread.is_alive()

    def start(self) -> Network:
        """Subscribe, give the state of now, and from here on report every change of it."""
        self._signs.bind((0, _GROUPS))
        self._known = self._read()
        self._thread.start()
        return self._known

    def stop(self) -> None:
        """End the thread, wait for it, and close everything. Once only."""
        os.eventfd_write(self._stop, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._signs.close()
        self._talk.close()
        os.close(self._stop)

    def _run(self) -> None:
        try:
            self._follow()
        except Exception as error:
            # Whatever it is: who waits for changes must not wait for ever.
            self._on_failure(error)

    def _follow(self) -> None:
        waiting = select.poll()
        waiting.register(self._stop, select.POLLIN)
        waiting.register(self._signs, select.POLLIN)
        stopping = select.poll()
        stopping.register(self._stop, select.POLLIN)
        while self._stop not in {ready for ready, _ in waiting.poll()}:
            if not self._take_signs():
                continue
            began = time.monotonic()
            now = self._read()
            if now != self._known:
                self._known = now
                self._on_change(now)
            spacing = max(_SPACING, time.monotonic() - began)
            if stopping.poll(1000 * spacing):
                return

    def _read(self) -> Network:
        while True:
            try:
                return self._reader.read()
            except DumpInterrupted:
                continue  # a change that interrupts is a change that will end

    def _take_signs(self) -> bool:
        """Read all that was announced; give whether any of it matters."""
        matters = False
        while True:
            try:
                data = self._signs.recv(1 << 16)
            except BlockingIOError:
                return matters
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                matters = True
                continue
            matters = matters or _matters(data)


def _matters(data: bytes) -> bool:
    """Tell whether announcements concern more than routes of single pods, which come in crowds."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, offset)
        destination_bits = data[offset + _HEADER.size + 1]
        if kind not in (wire.RTM_NEWROUTE, wire.RTM_DELROUTE) or destination_bits == 0:
            return True
        offset += (length + 3) & ~3
    return False
