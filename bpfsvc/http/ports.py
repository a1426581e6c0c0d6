"""The port, or the local address, of an HTTP server of this process."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple, Protocol

from bpfsvc.base.address import pack
from bpfsvc.services.cache import ServiceKey

UNSPECIFIED = ("", "0.0.0.0", "::")
"""Hosts that mean every address of both families, as in Go."""

_BACKLOG = 128


class ListenerKey(NamedTuple):
    """The Service that a listener belongs to, and its address."""

    service: ServiceKey
    address: bytes
    port: int


class ServerPort(Protocol):
    """Where a :class:`bpfsvc.http.server.HttpServer` listens."""

    port: int
    """The port that is served; 0 while there is none."""

    def open(self) -> tuple[socket.socket, ...]:
        """Return the sockets to accept clients from; raise ``OSError`` if the port is taken."""

    def release(self) -> bool:
        """Leave new clients to others; return False if waiting clients are lost by that."""

    def close(self) -> None:
        """Close the sockets that :meth:`open` returned."""


class BoundPort:
    """A port that this process is bound to; a wildcard is one of both families, as in Go."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._host, self._wanted = host, port
        self._listener: socket.socket | None = None

    def open(self) -> tuple[socket.socket, ...]:
        """Bind; raise ``OSError`` if another program is bound to the port."""
        self._listener = bind(self._host, self._wanted, both_families=self._host in UNSPECIFIED)
        self.port = int(self._listener.getsockname()[1])
        return (self._listener,)

    def release(self) -> bool:
        """Return False: a bound port can only be given up with its listener."""
        return False

    def close(self) -> None:
        """Free the port."""
        if self._listener:
            self._listener.close()
        self._listener, self.port = None, 0


class LocalAddress(BoundPort):
    """An abstract socket of this network namespace, which has no port."""

    def __init__(self, address: bytes) -> None:
        super().__init__("", 0)
        self._address = address

    def open(self) -> tuple[socket.socket, ...]:
        """Bind; raise ``OSError`` if another program has the address."""
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener = _listen(opened, self._address)
        return (opened,)


def bind(host: str, port: int, *, both_families: bool = False) -> socket.socket:
    """Return a listening socket; raise ``OSError`` if the address cannot be bound.

    ``both_families``: the socket accepts IPv4 at the IPv6 wildcard too, as Go does with either
    wildcard, and so kube-proxy with its health address. Without IPv6 it accepts IPv4 alone.
    """
    if both_families and host != "::" and not socket.has_dualstack_ipv6():
        both_families = False
    is_v6 = both_families or ":" in host
    opened = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_v6:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both_families)
    return _listen(opened, ("::" if both_families else host, port))


def _listen(opened: socket.socket, address: bytes | tuple[str, int]) -> socket.socket:
    try:
        opened.bind(address)
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def is_free(host: str, port: int) -> bool:
    """True if no program listens at an address; ``OSError`` if the node has no such address.

    A wildcard is every address of its own family, not of both.
    """
    is_v6 = ":" in host
    with socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM) as probe:
        # A socket that does not listen keeps no other program from binding the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def destination(client: socket.socket) -> tuple[bytes, int]:
    """Return the address and port that an accepted client has connected to."""
    host, port, *_ = client.getsockname()
    return pack(host.partition("%")[0]), port
