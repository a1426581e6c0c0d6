"""Addresses as the kernel side keys them: 16 packed bytes, IPv4 as v4-mapped IPv6.

One representation for both families means one map, one code path and one comparison; text exists
only at the edges (objects read, tables printed).
"""

from __future__ import annotations

import ipaddress
import socket

V4_PREFIX = bytes(10) + b"\xff\xff"
"""The first 12 bytes of every IPv4 address (RFC 4291, section 2.5.5.2)."""


def pack(text: str) -> bytes:
    """Pack ``"10.0.0.1"`` or ``"fd00::1"`` into 16 bytes; ``ValueError`` for anything else."""
    try:
        return V4_PREFIX + socket.inet_pton(socket.AF_INET, text)
    except OSError:
        pass
    try:
        return socket.inet_pton(socket.AF_INET6, text)
    except OSError:
        raise ValueError(f"{text!r} is not an IP address") from None


def unpack(address: bytes) -> str:
    """Give the text form of 16 packed bytes."""
    if address.startswith(V4_PREFIX):
        return socket.inet_ntop(socket.AF_INET, address[12:])
    return socket.inet_ntop(socket.AF_INET6, address)


def family(address: bytes) -> int:
    """Give 4 or 6."""
    return 4 if address.startswith(V4_PREFIX) else 6


def endpoint_text(address: bytes, port: int) -> str:
    """Give ``10.0.0.1:80`` or ``[fd00::1]:80``."""
    text = unpack(address)
    return f"{text}:{port}" if family(address) == 4 else f"[{text}]:{port}"


def pack_network(text: str) -> tuple[bytes, bytes]:
    """Pack a CIDR into (network, mask), 16 bytes each in the v4-mapped space.

    Host bits are ignored, as kube-proxy does; raise ``ValueError`` for what is no CIDR.
    """
    network = ipaddress.ip_network(text, strict=False)
    if isinstance(network, ipaddress.IPv4Network):
        return V4_PREFIX + network.network_address.packed, b"\xff" * 12 + network.netmask.packed
    return network.network_address.packed, network.netmask.packed


ANY_NODE_ADDRESS_V4 = pack("0.0.0.0")
"""Frontend address that stands for every IPv4 address of the node that accepts NodePorts."""

ANY_NODE_ADDRESS_V6 = pack("::")
"""The same for IPv6."""
