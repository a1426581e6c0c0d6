"""Addresses as the keys of kernel maps hold them: 16 packed bytes, IPv4 as v4-mapped IPv6.

One form for both families means one map, one code path and one comparison. Text exists only where
objects and settings are read and where tables are printed.
"""

from __future__ import annotations

import ipaddress
import socket

V4_PREFIX = bytes(10) + b"\xff\xff"
"""The first 12 bytes of every IPv4 address (RFC 4291, section 2.5.5.2)."""


def pack(text: str) -> bytes:
    """Return ``"10.0.0.1"`` or ``"fd00::1"`` as 16 bytes. Raises ``ValueError`` otherwise."""
    if of_v4 := pack_v4(text):
        return of_v4
    try:
        return socket.inet_pton(socket.AF_INET6, text)
    except (OSError, ValueError):  # ValueError: a NUL, or what UTF-8 cannot encode
        raise ValueError(f"{text!r} is not an IP address") from None


def pack_v4(text: str) -> bytes | None:
    """Return ``"10.0.0.1"`` as 16 bytes, None for anything else."""
    try:
        return V4_PREFIX + socket.inet_pton(socket.AF_INET, text)
    except (OSError, ValueError):
        return None


def unpack(address: bytes) -> str:
    """Return the text of 16 packed bytes."""
    if address.startswith(V4_PREFIX):
        return socket.inet_ntop(socket.AF_INET, address[12:])
    return socket.inet_ntop(socket.AF_INET6, address)


def family(address: bytes) -> int:
    """Return the family of 16 packed bytes: 4 or 6."""
    return 4 if address.startswith(V4_PREFIX) else 6


def endpoint_text(address: bytes, port: int) -> str:
    """Return ``10.0.0.1:80`` or ``[fd00::1]:80``."""
    if address.startswith(V4_PREFIX):
        return f"{socket.inet_ntoa(address[12:])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"


def pack_network(text: str) -> tuple[bytes, bytes]:
    """Pack a CIDR into (network, mask), 16 bytes each in the v4-mapped space.

    Host bits are ignored, as in kube-proxy. Raises ``ValueError`` for anything else.
    """
    network = ipaddress.ip_network(text, strict=False)
    if isinstance(network, ipaddress.IPv4Network):
        return V4_PREFIX + network.network_address.packed, b"\xff" * 12 + network.netmask.packed
    return network.network_address.packed, network.netmask.packed


def cidr_family(text: str) -> int:
    """Return the family, 4 or 6, of a CIDR such as ``10.0.0.0/8``; 0 for anything else."""
    try:
        return family(pack_network(text)[0]) if text.partition("/")[2].isdecimal() else 0
    except ValueError:
        return 0


def is_address(text: str) -> bool:
    """True if the text is an IP address."""
    try:
        return bool(pack(text))
    except ValueError:
        return False


def address_and_port(text: str) -> tuple[str, int] | None:
    """Split ``10.0.0.1:80`` or ``[fd00::1]:80``; return None for anything else."""
    host, _, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    address = host[1:-1] if bracketed else host
    if not port.isdecimal() or not 1 <= int(port) <= 65535 or not is_address(address):
        return None
    return (address, int(port)) if (":" in address) == bracketed else None


def with_port(text: str, port: int) -> str:
    """Append a port to an address; return any other text unchanged."""
    if not is_address(text):
        return text
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


ANY_NODE_ADDRESS_V4 = pack("0.0.0.0")
"""Frontend address that means every IPv4 address of the node that accepts NodePorts."""

ANY_NODE_ADDRESS_V6 = pack("::")
"""The same for IPv6."""
