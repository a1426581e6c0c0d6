"""Ports: those wanted, those the kernel gives out, and those in use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bpfsvc.datapath import sysctls
from bpfsvc.datapath.sysctls import PortRange
from bpfsvc.doctor.facts import Ports
from bpfsvc.errors import UsageError

_LISTEN = "0A"


def look(masquerade: PortRange, node_ports: PortRange) -> Ports:
    """Look."""
    clash = hint = ""
    try:
        sysctls.check_ports(masquerade, node_ports)
    except UsageError as error:
        clash, hint = error.message, error.hint
    found = list(_read("tcp"))
    listening = frozenset(port for port, listens in found if listens)
    # What a server accepted has its port.
    clients = {port for port, _ in found} - listening
    calling = frozenset(
        {("tcp", port) for port in clients} | {("udp", port) for port, _ in _read("udp")}
    )
    reserved = sysctls.parse_ports(sysctls.read(sysctls.RESERVED_PORTS))
    return Ports(
        masquerade=masquerade,
        node_ports=node_ports,
        clash=clash,
        clash_hint=hint,
        listening=listening,
        calling=calling,
        reserved=any(
            each.first <= masquerade.first and masquerade.last <= each.last for each in reserved
        ),
    )


def _read(protocol: str) -> Iterator[tuple[int, bool]]:
    for name in (protocol, f"{protocol}6"):
        file = Path("/proc/net", name)
        if file.exists():
            yield from read_sockets(file.read_text())


def read_sockets(text: str) -> Iterator[tuple[int, bool]]:
    """Read ``/proc/net/tcp`` and its like: local ports, and whether the socket listens."""
    for line in text.splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        yield int(local.rpartition(":")[2], 16), state == _LISTEN
