"""Packets that the kernel drops, as the program at the tracepoint of drops is handed them.

The program reads the kernel's own memory, by addresses. A ``struct sk_buff`` of three fields stands
in the memory of a map here, with a socket and the packet's bytes. So each read can be made to fail.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scapy.packet import Packet

from bpfsvc.datapath import syscall
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.instructions import R0, R1, R2, STACK, Code
from bpfsvc.datapath.loader import creation
from bpfsvc.datapath.maps.layout import MapLayout, Record
from tests.packets.events import Events
from tests.packets.node import Node

REASON = 8
"""Of the kernel, for a drop; any number."""

UNREADABLE = 16
"""An address where the kernel has no memory."""

_SIZE = 8192
"""Bytes of memory, whole pages; nothing is behind them."""

_LONGEST_HEADER = 40
"""The program reads so many bytes before it knows the family."""

_HEAD, _NETWORK_HEADER, _SOCKET = 0, 8, 16
"""Where the fields are."""

_SOCKET_AT, _PACKET_AT = 1024, 4096
_MMAPABLE = 1 << 10
_RAW_TRACEPOINT, _LOOKUP = 17, 1
"""The kind of a program, and a helper."""


class DroppedPackets:
    """Hands packets to the program of a node, and reads what it tells."""

    def __init__(self, node: Node, memory: Map, address: int) -> None:
        self._node = node
        self._memory = memory
        self._address = address
        self.events = Events(node)
        self.ask()
        self.ignore()

    def ask(self, *kinds: str, failures: int = 0) -> None:
        """Ask for drops elsewhere, or for these kinds; ``failures``: a mask of a sample."""
        self.events.ask(*(kinds or ("dropped_elsewhere",)), failures=failures)

    def ignore(self, *reasons: int, unreadable: str = "") -> None:
        """Write where the fields are, and the reasons of which nothing is told.

        ``unreadable``: the field that is behind the end of the memory.
        """
        bits = sum(1 << reason for reason in reasons)
        record = self._node.pinned.layout.maps["dropped_packets"].value
        entry: dict[str, int | bytes] = {
            "head": _HEAD,
            "network_header": _NETWORK_HEADER,
            "socket": _SOCKET,
            "ignored": b"".join(
                struct.pack("=Q", bits >> shift & (1 << 64) - 1) for shift in range(0, 256, 64)
            ),
        }
        if unreadable:
            entry[unreadable] = _SIZE
        self._node.pinned.map("dropped_packets").update(bytes(4), record.pack(entry))

    def told(
        self, packet: Packet | bytes, *, reason: int = REASON, cookie: int = 0, **addresses: int
    ) -> list[dict[str, Any]]:
        """Have a packet dropped; return the events that the program has told."""
        self.drop(packet, reason=reason, cookie=cookie, **addresses)
        return self.events.read()

    def drop(
        self, packet: Packet | bytes, *, reason: int = REASON, cookie: int = 0, **addresses: int
    ) -> None:
        """Have a packet dropped.

        * ``packet``: from its IP header on. Where bytes end the memory ends, too; behind a packet
          there is some room, as there is in the kernel.
        * ``cookie``: of the socket that has sent it; 0: it has none.
        * ``addresses``: of the ``skb``, its ``head`` and its ``socket``, if another one is handed
          over.
        """
        data = bytes(packet)
        if not isinstance(packet, bytes):
            data = data.ljust(_LONGEST_HEADER, b"\0")
        at = {
            "skb": self._address,
            "head": self._address + _PACKET_AT,
            "socket": self._address + _SOCKET_AT if cookie else 0,
            **addresses,
        }
        network_header = _SIZE - _PACKET_AT - len(data)
        fields = struct.pack("=QH6xQ", at["head"], network_header, at["socket"])
        # Wherever this kernel has the cookie in a socket.
        content = fields.ljust(_SOCKET_AT, b"\0") + struct.pack("=Q", cookie) * 128
        content = content.ljust(_SIZE - len(data), b"\0") + data
        self._memory.update(bytes(4), content)
        run_tracepoint(self._node.pinned.program("dropped"), at["skb"], 0, reason)


def run_tracepoint(program: int, *arguments: int) -> None:
    """Run a program of a raw tracepoint with the arguments of that."""
    context = ctypes.create_string_buffer(struct.pack(f"={len(arguments)}Q", *arguments))
    size = 8 * len(arguments)
    syscall.call(
        syscall.PROG_TEST_RUN,
        struct.pack("=I36xI4xQ20x", program, size, ctypes.addressof(context)),
    )


@contextmanager
def dropped_packets(node: Node) -> Iterator[DroppedPackets]:
    """Make the memory, ask for drops elsewhere, and ask for nothing in the end."""
    value = Record((("memory", f"{_SIZE}s"),))
    layout = MapLayout("array", Record((("key", "I"),)), value, 1, _MMAPABLE)
    memory = Map(creation.create_map("dropped", layout), "dropped")
    made = None
    try:
        made = DroppedPackets(node, memory, address_of_value(memory))
        yield made
    finally:
        if made:
            made.events.close()
        memory.close()


def address_of_value(memory: Map) -> int:
    """Return the address of a map's only value in the kernel."""
    code = Code()
    code.calculate(R1, "=", 0)
    code.store(STACK, -4, R1, 4)
    code.map(R1, memory.fd)
    code.move(R2, STACK)
    code.calculate(R2, "+", -4)
    code.call(_LOOKUP)
    code.if_unlike(R0, 0, "found")
    code.leave(0)
    code.mark("found")
    code.store(R0, 0, R0)
    code.leave(0)
    program = creation.load_program("address", _RAW_TRACEPOINT, 0, code.finish(), "GPL")
    run_tracepoint(program, 0)
    os.close(program)
    raw = memory.lookup(bytes(4)) or b""
    return int(struct.unpack_from("=Q", raw)[0])
