"""Sysctls of this network namespace, and the one bpfsvc changes: reserved local ports.

Masquerading takes source ports from a range of its own. Nothing else on the node may use the same
ports, so the range must be outside the local ports, from which the kernel serves ``connect`` and
``bind(0)``, and outside the NodePorts. It is reserved, so that it stays outside if the range of
local ports is enlarged. Other programs reserve ports in the same sysctl, so only our part of it is
changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.errors import KernelError, UsageError
from bpfsvc.base.ports import NODE_PORTS, PortRange

LOCAL_PORTS = "net.ipv4.ip_local_port_range"
RESERVED_PORTS = "net.ipv4.ip_local_reserved_ports"
V4_FORWARDING = "net.ipv4.ip_forward"
V6_DISABLED = "net.ipv6.conf.all.disable_ipv6"
V6_FORWARDING = "net.ipv6.conf.all.forwarding"

_ROOT = Path("/proc/sys")

_MAX_BYTES = 1 << 18
"""The kernel returns a list of ports to the first read only, cut to its size: enough for any."""

DEFAULT_LOCAL_PORTS = PortRange(32768, 60999)
"""The kernel's default at boot."""

Ports = tuple[PortRange, ...]
"""Disjoint ranges in ascending order, with a gap between any two."""


def read(name: str) -> str:
    """Return the value of a sysctl (``net.ipv4.ip_forward``) without the line end.

    Raises ``KernelError`` if this kernel has no sysctl of that name.
    """
    try:
        fd = os.open(_path(name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _MAX_BYTES).decode().rstrip("\n")
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
    """True if this node forwards packets of family 4 or 6."""
    name = V4_FORWARDING if family == 4 else V6_FORWARDING
    return _path(name).exists() and read(name) != "0"


def address_families() -> tuple[int, ...]:
    """Return the address families (4, 6) that are enabled on this machine."""
    disabled = _path(V6_DISABLED)
    has_v6 = Path("/proc/net/if_inet6").exists() and disabled.read_text().strip() == "0"
    return (4, 6) if has_v6 else (4,)


class IcmpLimits(NamedTuple):
    """How many ICMP errors this node sends.

    * ``intervals``: by family, milliseconds between two to one address, after a burst; None: that
      port unreachable is not limited.
    * ``per_second``, ``burst``: to all addresses.
    """

    intervals: dict[int, int | None]
    per_second: int
    burst: int


def icmp_limits() -> IcmpLimits:
    """Return the limits that the kernel's sysctls set for port unreachable."""
    masked = {4: _icmp_mask_v4(), 6: _icmp_mask_v6()}
    names = {4: "net.ipv4.icmp_ratelimit", 6: "net.ipv6.icmp.ratelimit"}
    return IcmpLimits(
        {family: _number(name) if masked[family] else None for family, name in names.items()},
        _number("net.ipv4.icmp_msgs_per_sec"),
        _number("net.ipv4.icmp_msgs_burst", 50),
    )


def _icmp_mask_v4() -> bool:
    """True if the limits hold for IPv4's destination unreachable, type 3."""
    return bool(_number("net.ipv4.icmp_ratemask", 1 << 3) >> 3 & 1)


def _icmp_mask_v6() -> bool:
    """True if the limits hold for IPv6's destination unreachable, type 1."""
    path = _path("net.ipv6.icmp.ratemask")
    types = path.read_text() if path.exists() else "0-1"
    return any(first <= 1 <= last for first, last in parse_ports(types))


def _number(name: str, default: int = 1000) -> int:
    """Return a sysctl that is a number, or the kernel's default if this kernel lacks it."""
    path = _path(name)
    return int(path.read_text()) if path.exists() else default


def parse_ports(text: str) -> Ports:
    """Return the ports that the kernel writes as ``"8080,9148-9150"``; raise ``ValueError``."""
    ranges = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, _, last = part.partition("-")
        ranges.append(PortRange(int(first), int(last or first)))
        if not 0 <= ranges[-1].first <= ranges[-1].last <= 65535:
            raise ValueError(f"{part!r} is not a range of ports")
    return _ranges({port for first, last in ranges for port in range(first, last + 1)})


def format_ports(ports: Ports) -> str:
    """Return ports in the kernel's notation, which :func:`parse_ports` reads."""
    return ",".join(str(range_) for range_ in ports)


def merge(left: Ports, right: Ports) -> Ports:
    """Return the ports that are in either."""
    return _ranges(_members(left) | _members(right))


def subtract(left: Ports, right: Ports) -> Ports:
    """Return the ports that are in ``left`` and not in ``right``."""
    return _ranges(_members(left) - _members(right))


def check_ports(ports: PortRange, node_ports: PortRange = NODE_PORTS) -> None:
    """Raise ``UsageError`` if the masquerade ports, NodePorts and local ports overlap.

    Replies to a connection that the node opened from a NodePort would be handled as requests to it.
    Ports that are reserved are never used for the node's connections.
    """
    for flag, given in (("masquerade-ports", ports), ("service-node-port-range", node_ports)):
        if not 1 <= given.first <= given.last <= 65535:
            raise UsageError(
                f"--{flag} {given} is not a range of ports", "give FIRST-LAST in 1-65535"
            )
    local = PortRange(*(int(number) for number in read(LOCAL_PORTS).split()))
    if _overlap(ports, local):
        first, last = max(_outside(local, ports), key=lambda range_: range_.last - range_.first)
        raise UsageError(
            f"--masquerade-ports {ports} overlaps the ports this node uses for its own"
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
            f"the NodePorts {node_ports} overlap the ports this node uses for its own"
            f" connections, {local}",
            f"reserve them: sysctl -w {RESERVED_PORTS}={wanted}"
            " (or name the API server's range with --service-node-port-range)",
        )


def reserve_ports(wanted: PortRange, ours: Ports = ()) -> Ports:
    """Reserve ports, besides those that others have reserved; return those that are ours.

    ``ours`` is what an earlier call returned: the caller keeps it across restarts, because the
    kernel does not record who reserved a port. Ports of it that are no longer wanted are released.
    If exactly the wanted range is reserved already, an init container or the administrator reserved
    it for us, and it is ours.
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
    """Release the ports that :func:`reserve_ports` returned; ports of others stay reserved."""
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


def _outside(ports: PortRange, without: PortRange) -> Ports:
    """Return a range without another range, or the kernel's default if nothing is left."""
    return subtract((ports,), (without,)) or (DEFAULT_LOCAL_PORTS,)


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
