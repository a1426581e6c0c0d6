"""Addresses and ranges as settings name them, and what is one."""

from __future__ import annotations

from bpfsvc.address import family, pack, pack_network
from bpfsvc.nodeports import PRIMARY

UNSPECIFIED = (pack("0.0.0.0"), pack("::"))


def packed(text: str) -> bytes | None:
    """Pack an address; None for what is none."""
    try:
        return pack(text)
    except ValueError:
        return None


def place(text: str) -> tuple[str, int] | None:
    """Split ``ADDRESS:PORT`` or ``[V6]:PORT``; None for anything else."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not port.isdecimal() or not 1 <= int(port) <= 65535 or packed(bare) is None:
        return None
    return (bare, int(port)) if (":" in bare) == host.startswith("[") else None


def with_port(text: str, port: int) -> str:
    """Append a port to a bare address; all else stays as it is."""
    if packed(text) is None:
        return text
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def range_family(text: str) -> int:
    """Give the family, 4 or 6, of a CIDR; 0 for what is none."""
    try:
        return family(pack_network(text)[0]) if text.partition("/")[2].isdecimal() else 0
    except ValueError:
        return 0


def cluster_ranges(text: str) -> tuple[str, ...]:
    """Split ``clusterCIDR``."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def nodeport_trouble(ranges: list[str]) -> tuple[int, str] | None:
    """Give the place in ``nodePortAddresses`` of what cannot stand there, and why."""
    if ranges == [PRIMARY]:
        return None
    for number, text in enumerate(ranges):
        if text == PRIMARY:
            return number, f"{PRIMARY!r} must stand alone"
        if not range_family(text):
            return number, f"must be a CIDR such as 10.0.0.0/8, not {text!r}"
    return None
