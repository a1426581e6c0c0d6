"""How a server gets its connections: bound to its port, or steered to it.

Two programs cannot be bound to one port. Where the kernel steers connections to a server
(:mod:`bpfsvc.datapath.steering`), kube-proxy may be bound to the same port meanwhile, before and
afterwards, and some program answers at every moment. Any other program that listens there keeps its
connections: the port is taken, and that is reported.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Protocol

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family, pack, unpack
from bpfsvc.datapath.steering import SteeredListeners, is_free

UNSPECIFIED = ("", "0.0.0.0", "::")
"""Hosts that mean every address of both families, as in Go."""

_BACKLOG = 128
_ASK_SECONDS = 1.0
_MAX_ANSWER = 65536
_LOOPBACKS = (pack("127.0.0.1"), pack("::1"))

_QUIET_SECONDS = 0.05
_DRAIN_SECONDS = 1.0
"""At the end: until nothing has come for so long, and at most this long."""


class Opening(Protocol):
    """A port of a server, as :class:`bpfsvc.http.server.HttpServer` uses it."""

    port: int
    """The port that is served; 0 while there is none."""

    def open(self) -> tuple[socket.socket, ...]:
        """Return the sockets to accept from; ``OSError`` if the port is taken."""

    def withdraw(self) -> bool:
        """Get no new connections. False if those that wait cannot be accepted any more."""

    def close(self) -> None:
        """Close what :meth:`open` returned."""


class BoundPort:
    """A port that the server is bound to; at a wildcard address for both families, as in Go."""

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self._host, self._wanted = host, port
        self._listener: socket.socket | None = None

    def open(self) -> tuple[socket.socket, ...]:
        """Bind; ``OSError`` if another program is bound to the port."""
        self._listener = listener(self._host, self._wanted, both_families=self._host in UNSPECIFIED)
        self.port = int(self._listener.getsockname()[1])
        return (self._listener,)

    def withdraw(self) -> bool:
        """A bound port cannot be given up without its listener."""
        return False

    def close(self) -> None:
        """Free the port."""
        if self._listener:
            self._listener.close()
        self._listener, self.port = None, 0


class LocalAddress:
    """An abstract socket of this network namespace, which has no port."""

    port = 0

    def __init__(self, address: bytes) -> None:
        self._address = address
        self._listener: socket.socket | None = None

    def open(self) -> tuple[socket.socket, ...]:
        """Bind; ``OSError`` if another program has the address."""
        opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            opened.bind(self._address)
            opened.listen(_BACKLOG)
            opened.setblocking(False)
        except OSError:
            opened.close()
            raise
        self._listener = opened
        return (opened,)

    def withdraw(self) -> bool:
        """An address cannot be given up without its listener."""
        return False

    def close(self) -> None:
        """Free the address."""
        if self._listener:
            self._listener.close()
        self._listener = None


class SteeredPort:
    """A port whose connections the kernel steers here, for the server of ``/healthz``.

    While kube-proxy answers at it, only this node's own questions are taken (the kubelet's probes
    are about this agent) until :meth:`widen`: load balancers get kube-proxy's answer as long as
    that is what serves.
    """

    def __init__(self, listeners: SteeredListeners, host: str, port: int) -> None:
        self.port = 0
        self._listeners = listeners
        self._host, self._wanted = host, port
        self._ready = False

    def open(self) -> tuple[socket.socket, ...]:
        """Take the connections to the port; ``OSError`` if another program listens there."""
        alone = all(is_free(unpack(each), self._wanted) for each in self._addresses())
        if not alone and not self._is_kube_proxys():
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.port = self._wanted
        for address in _LOOPBACKS if self._host in UNSPECIFIED else ():
            self._listeners.add(address, self._wanted)
        if alone or self._ready:
            self.widen()
        return self._listeners.sockets

    def widen(self) -> None:
        """Take the connections to all addresses from now on."""
        self._ready = True
        for address in self._addresses() if self.port else ():
            self._listeners.add(address, self._wanted)

    def withdraw(self) -> bool:
        """Leave new connections to whoever is bound to the port."""
        self._listeners.remove_all()
        return True

    def close(self) -> None:
        """Close the listeners."""
        self._listeners.close()
        self.port = 0

    def _addresses(self) -> tuple[bytes, ...]:
        if self._host not in UNSPECIFIED:
            return (pack(self._host),)
        both = socket.has_dualstack_ipv6()
        return (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6) if both else (ANY_NODE_ADDRESS_V4,)

    def _is_kube_proxys(self) -> bool:
        found = ask(pack(self._host or "0.0.0.0"), self._wanted, "/healthz")
        return isinstance(found, dict) and {"lastUpdated", "currentTime"} <= found.keys()


def listener(host: str, port: int, *, both_families: bool = False) -> socket.socket:
    """Return a listening socket; ``OSError`` if the address cannot be bound.

    ``both_families`` accepts IPv4 on an IPv6 wildcard as well: so does Go with either wildcard, and
    thus kube-proxy with its health address. Without IPv6 it is IPv4 alone.
    """
    if both_families and host != "::" and not socket.has_dualstack_ipv6():
        both_families = False
    is_v6 = both_families or ":" in host
    opened = socket.socket(socket.AF_INET6 if is_v6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_v6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not both_families)
        opened.bind(("::" if both_families else host, port))
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def ask(address: bytes, port: int, path: str) -> object:
    """Return the JSON that a server of this node answers; None if it answers anything else.

    A wildcard address is asked at loopback.
    """
    if address in (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6):
        address = _LOOPBACKS[family(address) == 6]
    answer = bytearray()
    try:
        with socket.create_connection((unpack(address), port), timeout=_ASK_SECONDS) as client:
            client.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            while len(answer) < _MAX_ANSWER and (part := client.recv(_MAX_ANSWER)):
                answer += part
        return json.loads(answer.partition(b"\r\n\r\n")[2])
    except (OSError, ValueError):
        return None


def destination(client: socket.socket) -> tuple[bytes, int]:
    """Return the address and port that an accepted client has connected to."""
    host, port, *_ = client.getsockname()
    return pack(host.partition("%")[0]), port


def drain(
    selector: selectors.BaseSelector,
    handle: Callable[[selectors.SelectorKey], None],
    is_waited_for: Callable[[], bool],
) -> None:
    """Handle what still comes, until nothing does: those who have connected get their answer."""
    ends = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < ends:
        events = selector.select(timeout=_QUIET_SECONDS)
        if not events and not is_waited_for():
            return
        for key, _ in events:
            handle(key)
