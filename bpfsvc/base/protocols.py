"""The transport protocols of Services."""

from __future__ import annotations

import socket

PROTOCOLS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP, "SCTP": socket.IPPROTO_SCTP}
"""Protocol names as the API writes them, and their IPPROTO numbers."""

PROTOCOL_NAMES = {int(number): name for name, number in PROTOCOLS.items()}
