"""ipvs' virtual servers and ipset's sets, as the kernel and the tools print them. Pure."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from bpfsvc.base.address import endpoint_text, pack
from bpfsvc.base.protocols import PROTOCOL_NAMES, PROTOCOLS

_OPTIONS = {"TCP": "-t", "UDP": "-u", "SCTP": "--sctp-service"}
"""The options of ipvsadm, by protocol."""

_PROTOCOLS = {option: PROTOCOLS[name] for name, option in _OPTIONS.items()}

Place = tuple[bytes, int]
"""Address and port."""


class VirtualServer(NamedTuple):
    """A virtual server: its packed address, port and IPPROTO.

    ``affinity``: seconds; ``backends``: the real servers that get new connections.
    """

    address: bytes
    port: int
    protocol: int
    affinity: int = 0
    backends: tuple[Place, ...] = ()

    @property
    def deletion(self) -> str:
        """The arguments of ipvsadm that delete it."""
        option = _OPTIONS[PROTOCOL_NAMES[self.protocol]]
        return f"-D {option} {endpoint_text(self.address, self.port)}"


def read_kernel_list(text: str) -> Iterator[VirtualServer]:
    """Yield the virtual servers of ``/proc/net/ip_vs``, without affinity and backends.

    Servers of a firewall mark have no address, and are left out.
    """
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name in PROTOCOLS:
            address, _, port = rest.split()[0].rpartition(":")
            yield VirtualServer(_kernel_address(address), int(port, 16), PROTOCOLS[name])


def _kernel_address(text: str) -> bytes:
    if text.startswith("["):
        return pack(text[1:-1])
    return pack(socket.inet_ntoa(struct.pack(">I", int(text, 16))))


def read_saved(text: str) -> tuple[VirtualServer, ...]:
    """Return the virtual servers that ``ipvsadm -Sn`` prints.

    Real servers of weight 0 get no new connections, so they are no backends. Servers of a firewall
    mark are left out.
    """
    servers: dict[tuple[bytes, int, int], VirtualServer] = {}
    for line in text.splitlines():
        command, kind, frontend, *words = line.split()
        if kind not in _PROTOCOLS:
            continue
        key = (*_place(frontend), _PROTOCOLS[kind])
        options = dict(pairwise(words))
        if command == "-A":
            servers[key] = VirtualServer(*key, int(options.get("-p", 0)))
        elif command == "-a" and options["-w"] != "0":
            server = servers[key]
            servers[key] = server._replace(backends=(*server.backends, _place(options["-r"])))
    return tuple(servers.values())


def _place(text: str) -> Place:
    address, _, port = text.rpartition(":")
    return pack(address.strip("[]")), int(port)


def read_sets(text: str) -> dict[str, list[str]]:
    """Return the sets that ``ipset save`` prints, each with its members."""
    sets: dict[str, list[str]] = {}
    for line in text.splitlines():
        command, name, *rest = line.split()
        if command == "create":
            sets[name] = []
        elif command == "add":
            sets.setdefault(name, []).append(rest[0])
    return sets
