"""Sysctls of this network namespace, and the one bpfsvc changes: reserved local ports.

Masquerading takes source ports from a range of its own. Nothing else on the node may take the same
ones, so the range must lie outside those from which the kernel serves ``connect`` and ``bind(0)``,
and outside the NodePorts, and is reserved so that it stays out if the former range is enlarged.
Other programs reserve ports in the same sysctl, hence the care to change only our part of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bpfsvc.errors import KernelError, UsageError

LOCAL_PORTS = "net.ipv4.ip_local_port_range"
RESERVED_PORTS = "net.ipv4.ip_local_reserved_ports"
V4_FORWARDING = "net.ipv4.ip_forward"
V6_FORWARDING = "net.ipv6.conf.all.forwarding"

_ROOT = Path("/proc/sys")

_LONGEST = 1 << 18
"""The kernel gives a list of ports to the first read only, cut to its size; this holds any list."""


class PortRange(NamedTuple):
    """Ports from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}" if self.first != self.last else str(self.first)


NODE_PORTS = PortRange(30000, 32767)
"""The API server's default ``--service-node-port-range``."""

DEFAULT_LOCAL_PORTS = PortRange(32768, 60999)
"""What the kernel has at boot."""

Ports = tuple[PortRange, ...]
"""Disjoint ranges in ascending order, with a gap between any two."""


def read(name: str) -> str:
    """Give the value of a sysctl (``net.ipv4.ip_forward``) without the line end.

    Raises ``KernelError`` if this kernel has none of that name.
    """
    try:
        fd = os.open(_path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _LONGEST).decode().rstrip("\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise KernelError(f"cannot read sysctl {name}: {error.strerror}") from error


def write(name: str, value: str) -> None:
    """Set a sysctl. Raises ``KernelError`` if the kernel refuses."""
    try:
        _path(name).write_text(value + "\n")
    except OSError as error:
        raise KernelError(
            f"cannot set sysctl {name} to {value!r}: {error.strerror}",
            "run as root with /proc/sys writable",
        ) from error


def forwards(family: int) -> bool:
    """Tell whether this node forwards packets of family 4 or 6 at all."""
    name = V4_FORWARDING if family == 4 else V6_FORWARDING
    return _path(name).exists() and read(name) != "0"


def parse_ports(text: str) -> Ports:
    """Read the kernel's notation, ``"8080,9148-9150"``. ``ValueError`` for what is none."""
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        ranges.append(PortRange(int(first), int(last or first)))
        if not 0 <= ranges[-1].first <= ranges[-1].last <= 65535:
            raise ValueError(f"{part!r} is not a range of ports")
    return _ranges({port for first, last in ranges for port in range(first, last + 1)})


def format_ports(ports: Ports) -> str:
    """Give the kernel's notation of what :func:`parse_ports` reads."""
    return ",".join(str(each) for each in ports)


def merge(left: Ports, right: Ports) -> Ports:
    """Give the ports in either."""
    return _ranges(_members(left) | _members(right))


def subtract(left: Ports, right: Ports) -> Ports:
    """Give the ports in ``left`` and not in ``right``."""
    return _ranges(_members(left) - _members(right))


def check_ports(ports: PortRange, node_ports: PortRange = NODE_PORTS) -> None:
    """Raise ``UsageError`` if masquerading from ``ports``, NodePorts and local ports would meet.

    Answers to the node's own connections from the port of a NodePort would be taken for clients
    of it; those that are reserved are never given to connections.
    """
    for flag, given in (("masquerade-ports", ports), ("service-node-port-range", node_ports)):
        if not 1 <= given.first <= given.last <= 65535:
            raise UsageError(
                f"--{flag} {given} is not a range of ports", "give FIRST-LAST in 1-65535"
            )
    local = PortRange(*(int(number) for number in read(LOCAL_PORTS).split()))
    if _overlap(ports, local):
        first, last = max(_outside(local, ports), key=lambda each: each.last - each.first)
        raise UsageError(
            f"--masquerade-ports {ports} overlaps the ports this node gives to its own"
            f" connections, {local}",
            f"choose a range outside them, or: sysctl -w {LOCAL_PORTS}='{first} {last}'",
        )
    if _overlap(ports, node_ports):
        raise UsageError(
            f"--masquerade-ports {ports} overlaps the NodePorts {node_ports}",
            "choose a range outside them with --masquerade-ports FIRST-LAST",
        )
    reserved = parse_ports(read(RESERVED_PORTS))
    if subtract(_common(node_ports, local), reserved):
        wanted = format_ports(merge(reserved, (node_ports,)))
        raise UsageError(
            f"the NodePorts {node_ports} overlap the ports this node gives to its own"
            f" connections, {local}",
            f"reserve them: sysctl -w {RESERVED_PORTS}={wanted}"
            " (or name the API server's range with --service-node-port-range)",
        )


def reserve_ports(wanted: PortRange, ours: Ports = ()) -> Ports:
    """Reserve ports, beside what others reserved; give those that are to be released one day.

    ``ours`` is what an earlier call gave: the caller keeps it across restarts, as the kernel does
    not tell whose a reserved port is. Ports of it that are no longer wanted are released. A range
    that is the very one wanted was reserved for us by somebody who may do more than we may.
    """
    reserved = parse_ports(read(RESERVED_PORTS))
    if not ours and wanted in reserved:
        ours = (wanted,)
    others = subtract(reserved, ours)
    target = merge(others, (wanted,))
    if target != reserved:
        write(RESERVED_PORTS, format_ports(target))
    return subtract((wanted,), others)


def release_ports(ours: Ports) -> None:
    """Give back what :func:`reserve_ports` said was ours; what others reserved stays."""
    reserved = parse_ports(read(RESERVED_PORTS))
    remaining = subtract(reserved, ours)
    if remaining != reserved:
        write(RESERVED_PORTS, format_ports(remaining))


def _path(name: str) -> Path:
    return _ROOT / name.replace(".", "/")


def _overlap(left: PortRange, right: PortRange) -> bool:
    return left.first <= right.last and right.first <= left.last


def _common(left: PortRange, right: PortRange) -> Ports:
    first, last = max(left.first, right.first), min(left.last, right.last)
    return (PortRange(first, last),) if first <= last else ()


def _outside(whole: PortRange, hole: PortRange) -> Ports:
    """Give what is left of a range, or what the kernel has at boot if nothing is."""
    return subtract((whole,), (hole,)) or (DEFAULT_LOCAL_PORTS,)


def _members(ports: Ports) -> set[int]:
    return {port for first, last in ports for port in range(first, last + 1)}


def _ranges(members: Iterable[int]) -> Ports:
    ranges: list[PortRange] = []
    for port in sorted(members):
        if ranges and ranges[-1].last == port - 1:
            ranges[-1] = PortRange(ranges[-1].first, port)
        else:
            ranges.append(PortRange(port, port))
    return tuple(ranges)
