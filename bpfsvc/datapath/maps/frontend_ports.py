"""The ports of frontends, in the filter by which the programs recognise most packets.

The programs look at a packet from the middle of a connection only if the filter has the byte of one
of its ports (``bpf/maps/port_filter.h``). The filter has the ports of all connections. It has the
ports of frontends, too, so that a packet of an unknown connection is found and answered
(``bpf/path/first/unknown.h``). The programs write to the filter all the time, so a program sets the
bytes of frontends, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from socket import IPPROTO_TCP

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6
from bpfsvc.datapath.maps.gc_program import GcProgram
from bpfsvc.datapath.maps.pins import Pinned

_ADDRESS = 16
_REST = struct.Struct("!HB")
_NODE_PORTS = (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6)


class FrontendPorts:
    """The bytes of one build's filter that belong to frontends. They are never cleared."""

    def __init__(self, pinned: Pinned) -> None:
        self._gc = GcProgram(pinned)
        self._flow = pinned.layout.maps["connections"].key
        self._hook = pinned.layout.constant("HOOK_INGRESS")

    def note(self, frontends: Iterable[bytes]) -> None:
        """Set the bytes of TCP frontends, given as keys, which are written next.

        NodePorts are left out: packets to them stay on the node, and its TCP answers.
        """
        ports = set()
        for key in frontends:
            port, protocol = _REST.unpack_from(key, _ADDRESS)
            if protocol == IPPROTO_TCP and key[:_ADDRESS] not in _NODE_PORTS and port:
                ports.add(port)
        self._gc.note(
            [
                self._flow.pack(
                    {"destination_port": port, "protocol": IPPROTO_TCP, "hook": self._hook}
                )
                for port in ports
            ]
        )
