"""Collect facts about ports and sockets, from the kernel's lists ``/proc/net/tcp`` and its like."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base.address import V4_PREFIX, unpack
from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.base.http_client import ask_json
from bpfsvc.base.ports import PortRange
from bpfsvc.datapath import sysctl
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.doctor.facts import PortFacts
from bpfsvc.inspect.fields import chooser
from bpfsvc.inspect.reader import PinnedReader, open_pinned

_LISTENS = "0A"
"""The state of a TCP socket that waits for clients, as the kernel prints it."""

_WAITING = {"tcp": _LISTENS, "udp": "07"}
"""The state of a socket that waits for clients, by protocol."""

_NO_PROGRAM = "0"
"""The inode of a connection that no program has: it is closed, or a server has not accepted it."""

_V4_DIGITS = 8


class Socket(NamedTuple):
    """A socket: its packed local address, its port, and its state as the kernel prints it."""

    address: bytes
    port: int
    state: str

    @property
    def listens(self) -> bool:
        """True for a TCP socket that waits for clients."""
        return self.state == _LISTENS


def read_sockets(text: str) -> Iterator[Socket]:
    """Yield the sockets of ``/proc/net/tcp`` or a list like it.

    Connections that no program has, as all in TIME_WAIT, are left out.
    """
    for line in text.splitlines()[1:]:
        _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
        digits, _, port = local.rpartition(":")
        if inode != _NO_PROGRAM:
            yield Socket(_address(digits), int(port, 16), state)


def _address(digits: str) -> bytes:
    """Return the packed address that the kernel prints as words in the order of this machine."""
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return (V4_PREFIX if len(digits) == _V4_DIGITS else b"") + b"".join(words)


def _sockets(protocol: str) -> Iterator[Socket]:
    """Yield the sockets of ``tcp`` or ``udp`` of both families, as far as this kernel has them."""
    for name in (protocol, f"{protocol}6"):
        file = Path("/proc/net", name)
        if file.exists():
            yield from read_sockets(file.read_text())


def collect_ports(masquerade: PortRange, node_ports: PortRange, root: PinRoot) -> PortFacts:
    """Return the ports wanted, those the kernel assigns, and those in use."""
    clash = hint = ""
    try:
        sysctl.check_ports(masquerade, node_ports)
    except UsageError as error:
        clash, hint = error.message, error.hint
    tcp = list(_sockets("tcp"))
    listening = frozenset(socket.port for socket in tcp if socket.listens)
    # A connection that a server accepted has the server's port, and is not counted.
    clients = {socket.port for socket in tcp} - listening
    udp = {socket.port for socket in _sockets("udp")}
    reserved = sysctl.parse_ports(sysctl.read(sysctl.RESERVED_PORTS))
    return PortFacts(
        masquerade=masquerade,
        node_ports=node_ports,
        clash=clash,
        clash_hint=hint,
        listening=listening,
        in_use=frozenset({("tcp", port) for port in clients} | {("udp", port) for port in udp}),
        health_checks=_health_checks(tcp, node_ports),
        reserved=any(
            ports.first <= masquerade.first and masquerade.last <= ports.last for ports in reserved
        ),
        at_cluster_ips=_at_cluster_ips(root),
    )


def _health_checks(sockets: Collection[Socket], node_ports: PortRange) -> frozenset[int]:
    """Return the ports at which bpfsvc or kube-proxy says whether a Service has endpoints here.

    A Service gets such a port from the range of the NodePorts. Its server is asked, as the process
    that has a socket may be in another container, which cannot be seen.
    """
    return frozenset(
        socket.port
        for socket in sockets
        if socket.listens
        and node_ports.first <= socket.port <= node_ports.last
        and is_health_check(ask_json((unpack(socket.address), socket.port), "/"))
    )


def is_health_check(answer: object) -> bool:
    """True if an answer comes from a ``healthCheckNodePort``, of bpfsvc or of kube-proxy."""
    return isinstance(answer, dict) and {"service", "localEndpoints"} <= answer.keys()


# -- sockets that win over Services, because they are bound to a cluster IP --


def _at_cluster_ips(root: PinRoot) -> tuple[str, ...]:
    """Return such sockets as ``tcp ADDRESS port NUMBER``; none where no build is loaded."""
    cluster_ips = _cluster_ips(root)
    if not cluster_ips:
        return ()
    return tuple(
        text
        for protocol in _WAITING
        for text in listeners_at(cluster_ips, protocol, _sockets(protocol))
    )


def listeners_at(
    wanted: Collection[bytes], protocol: str, sockets: Iterator[Socket]
) -> Iterator[str]:
    """Yield the texts of the sockets at the addresses ``wanted`` that wait for clients."""
    for socket in sockets:
        if socket.state == _WAITING[protocol] and socket.address in wanted:
            yield f"{protocol} {unpack(socket.address)} port {socket.port}"


def _cluster_ips(root: PinRoot) -> set[bytes]:
    """Return all cluster IPs: addresses with an entry for all other ports."""
    try:
        with open_pinned(root) as pinned:
            reader = PinnedReader(pinned)
            choose = chooser(reader.layout.maps["frontends"].key, ("address", "port", "protocol"))
            keys = (choose(key) for key, _ in reader.entries("frontends"))
            return {address for address, port, protocol in keys if not (port or protocol)}
    except BpfsvcError:
        return set()
