"""A question: source, protocol and destination of a packet."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from bpfsvc.base.address import family, pack, unpack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.protocols import PROTOCOLS

ORIGINS = ("pod", "external", "node", "localhost", "node-as-vip")
"""Where a packet comes from. The last three are processes of the node."""

_OF_NODE = frozenset(ORIGINS[2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The first packet of a connection. Addresses are packed, ``protocol`` is an IPPROTO number.

    ``interface`` is the one it arrives at, empty if that does not matter.
    """

    origin: str
    source: bytes
    destination: bytes
    port: int
    protocol: int
    interface: str = ""

    @property
    def is_of_node(self) -> bool:
        """True if a process of this node sends it: its socket is translated, and no packet."""
        return self.origin in _OF_NODE


def question(
    origin: str, source: str, protocol: str, destination: str, port: int, interface: str = ""
) -> Question:
    """Return a question made of texts; raise :class:`UsageError` if it makes no sense."""
    if origin not in ORIGINS:
        raise UsageError(
            f"{origin!r} is not an origin of packets", f"choose one of: {', '.join(ORIGINS)}"
        )
    if protocol.upper() not in PROTOCOLS:
        raise UsageError(
            f"{protocol!r} is not a protocol of Services", f"choose one of: {', '.join(PROTOCOLS)}"
        )
    if not 0 < port < 65536:
        raise UsageError(f"{port} is not a port", "ports are 1 to 65535")
    sender, receiver = parse_address(source), parse_address(destination)
    if family(sender) != family(receiver):
        raise UsageError(
            f"{unpack(sender)} cannot send to {unpack(receiver)}",
            "both addresses must be of one family",
        )
    return Question(
        origin=origin,
        source=sender,
        destination=receiver,
        port=port,
        protocol=PROTOCOLS[protocol.upper()],
        interface=interface,
    )


def parse_address(text: str) -> bytes:
    """Return a packed address; raise :class:`UsageError` if a text is none."""
    try:
        return pack(str(ipaddress.ip_address(text)))
    except ValueError:
        raise UsageError(
            f"{text!r} is not an IP address", "write it as 10.0.0.1 or fd00::1"
        ) from None
