"""A node whose programs are attached, with the kernel between the hooks, and what it sends.

The links are those of the fast path's testbed. Frames are sent and seen at their far ends.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.datapath.attach.interfaces import Attacher, detach
from bpfsvc.datapath.netlink.hooks import Hook
from bpfsvc.devtools.lab.patience import stretched
from tests.packets.fast_path import FastPathTestbed, fast_path
from tests.packets.node import Node

_ALL_PROTOCOLS = 3
"""ETH_P_ALL."""

POD, UPLINK = "pod0", "eth0"


class Wire:
    """The node, and sockets at the far ends of its links."""

    def __init__(self, testbed: FastPathTestbed, ends: dict[str, socket.socket]) -> None:
        self.testbed = testbed
        self.node = testbed.node
        self._ends = ends

    def send(self, name: str, packet: Packet) -> None:
        """Send a packet to the node by one of its links."""
        frame = Ether(src=self.testbed.far[name], dst=self.testbed.ends[name].mac) / packet
        self._ends[name].send(bytes(frame))

    def seen(self, name: str, last: Packet) -> list[Packet]:
        """Return the packets that the node sends by a link until ``last``, which is among them.

        Only TCP, UDP and SCTP of the family of ``last`` count.
        """
        found: list[Packet] = []
        deadline = time.monotonic() + stretched(10)
        while not found or bytes(found[-1]) != bytes(last):
            left = deadline - time.monotonic()
            if left < 0 or not _readable(self._ends[name], left):
                raise TimeoutError(f"not seen at {name}: {last.summary()}; but {found}")
            packet = self._receive(name)
            if packet is not None:
                found.append(packet)
        return found

    def clear(self) -> None:
        """Forget all frames that have been sent so far."""
        for name, end in self._ends.items():
            while _readable(end, 0):
                self._receive(name)

    def _receive(self, name: str) -> Packet | None:
        data, (_, _, kind, *_) = self._ends[name].recvfrom(65536)
        packet = Ether(data).payload
        if kind == socket.PACKET_OUTGOING or not isinstance(packet, IP | IPv6):
            return None
        protocol = packet.proto if isinstance(packet, IP) else packet.nh
        known = (socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_SCTP)
        return packet if protocol in known else None


def _readable(end: socket.socket, seconds: float) -> bool:
    """True as soon as there is something to read; select() fails beyond a thousand open files."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@contextmanager
def wire(node: Node) -> Iterator[Wire]:
    """Build the testbed and attach the programs to its links."""
    with fast_path(node) as testbed, ExitStack() as cleanup:
        node.root.links.mkdir(exist_ok=True)
        attacher = Attacher(node.root, "auto", 1)
        ends = {}
        for name in (POD, UPLINK):
            index = testbed.ends[name].index
            with testbed.here.entered():
                for hook in Hook:
                    attacher.attach(index, hook, node.pinned.program(str(hook)), name)
            cleanup.callback(_detach, testbed, node, index)
            with testbed.there.entered():
                end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
                end.bind((name, _ALL_PROTOCOLS))
            ends[name] = cleanup.enter_context(end)
        yield Wire(testbed, ends)


def _detach(testbed: FastPathTestbed, node: Node, index: int) -> None:
    with testbed.here.entered():
        detach(node.root, index)
