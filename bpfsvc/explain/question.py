"""A question: source, protocol and destination of a packet; read from flags or from a file."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpfsvc.base.address import family, pack, unpack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.protocols import PROTOCOLS

ORIGINS = ("pod", "external", "node", "localhost", "node-as-vip")
"""Where a packet comes from. The last three are processes of the node."""

_OF_NODE = frozenset(ORIGINS[2:])

FORMAT = "bpfsvc-kube-proxy-conformance/1"
"""The format of files of cases (docs/explain.md)."""

Case = Mapping[str, Any]
"""A node with its objects, and questions about it."""


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


def from_flow(flow: Mapping[str, Any]) -> Question:
    """Return the question of one flow of a case."""
    return question(
        flow["from"],
        flow["src_ip"],
        flow["proto"],
        flow["dst_ip"],
        flow["dst_port"],
        flow.get("in_iface") or "",
    )


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file; raise :class:`UsageError` if it is not a file of cases."""
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give a file of cases"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}", "give a file of cases") from error
    if isinstance(document, dict) and document.get("format", FORMAT) != FORMAT:
        raise UsageError(f"{path} has the format {document['format']!r}", f"write {FORMAT}")
    cases = document.get("cases") if isinstance(document, dict) else document
    if not isinstance(cases, list):
        raise UsageError(f"{path} has no list of cases", "see docs/explain.md for the format")
    return cases


def parse_address(text: str) -> bytes:
    """Return a packed address; raise :class:`UsageError` if a text is none."""
    try:
        return pack(str(ipaddress.ip_address(text)))
    except ValueError:
        raise UsageError(
            f"{text!r} is not an IP address", "write it as 10.0.0.1 or fd00::1"
        ) from None
