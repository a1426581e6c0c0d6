"""A question: who sends what where. And how it is read from a command line or from a case."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bpfsvc.address import family, pack, unpack
from bpfsvc.errors import UsageError
from bpfsvc.rows import PROTOCOLS

ORIGINS = ("pod", "external", "node", "localhost", "node-as-vip")
"""Where a packet comes from. The last three are processes of the node."""

_OF_NODE = frozenset(ORIGINS[2:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The first packet of a connection. Addresses are packed, ``protocol`` is an IPPROTO number.

    ``interface`` is where it comes in, empty if that does not matter.
    """

    origin: str
    source: bytes
    destination: bytes
    port: int
    protocol: int
    interface: str = ""

    @property
    def is_of_node(self) -> bool:
        """Whether a process of this node asks, so that a socket is translated and no packet."""
        return self.origin in _OF_NODE


def question(
    origin: str, source: str, protocol: str, destination: str, port: int, interface: str = ""
) -> Question:
    """Read a question; raise :class:`UsageError` for what makes no sense."""
    if origin not in ORIGINS:
        raise UsageError(
            f"{origin!r} is no origin of packets", f"it is one of: {', '.join(ORIGINS)}"
        )
    if protocol.upper() not in PROTOCOLS:
        raise UsageError(
            f"{protocol!r} is no protocol of Services", f"it is one of: {', '.join(PROTOCOLS)}"
        )
    if not 0 < port < 65536:
        raise UsageError(f"{port} is no port", "ports are 1 to 65535")
    sender, receiver = _address(source), _address(destination)
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


def place(text: str) -> tuple[str, int]:
    """Take ``10.0.0.1:80`` or ``[fd00::1]:80`` apart."""
    address, colon, port = text.rpartition(":")
    bare = address.removeprefix("[").removesuffix("]")
    if not colon or not port.isdigit() or (":" in bare) != (address != bare):
        raise UsageError(
            f"{text!r} is not an address and a port",
            "write 10.0.0.1:80, or [fd00::1]:80 for IPv6",
        )
    return bare, int(port)


def from_flow(flow: Mapping[str, Any]) -> Question:
    """Read a flow of a case."""
    return question(
        flow["from"],
        flow["src_ip"],
        flow["proto"],
        flow["dst_ip"],
        flow["dst_port"],
        flow.get("in_iface") or "",
    )


def _address(text: str) -> bytes:
    try:
        return pack(str(ipaddress.ip_address(text)))
    except ValueError:
        raise UsageError(
            f"{text!r} is not an IP address", "write it as 10.0.0.1 or fd00::1"
        ) from None
