"""Ports that the kernel steers to this process, beside a kube-proxy that is bound to them.

Two programs cannot be bound to one port. Where the kernel steers connections to a server
(:mod:`bpfsvc.datapath.steering`), kube-proxy may be bound to the same port before, meanwhile and
afterwards, and one of the two answers at every moment. Any other program that listens there keeps
its connections: the port counts as taken, and that is reported.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Protocol

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, pack, unpack
from bpfsvc.base.http_client import ask_json
from bpfsvc.http.ports import UNSPECIFIED, is_free

_LOOPBACKS = (pack("127.0.0.1"), pack("::1"))


class SteeredListeners(Protocol):
    """Listening sockets, and the ports that the kernel steers to them."""

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The sockets, one for each family that the node has."""

    def add(self, address: bytes, port: int) -> None:
        """Steer connections to a port here; a wildcard address is every one of its family."""

    def remove(self, address: bytes, port: int) -> None:
        """Steer no new connections to a port here."""

    def remove_all(self) -> None:
        """Steer no new connections here; the sockets still accept those that have come."""

    def close(self) -> None:
        """Close the sockets."""


class SteeredPort:
    """A port that the kernel steers here, for the server of ``/healthz``.

    While kube-proxy answers at the port, only this node's own clients are steered here (the
    kubelet's probes are about this agent) until :meth:`serve_all_addresses`: load balancers get
    kube-proxy's answer as long as kube-proxy serves.
    """

    def __init__(self, listeners: SteeredListeners, host: str, port: int) -> None:
        self.port = 0
        self._listeners = listeners
        self._host, self._wanted = host, port
        self._serves_all = False

    def open(self) -> tuple[socket.socket, ...]:
        """Steer connections here; raise ``OSError`` if another program listens at the port."""
        is_alone = all(is_free(unpack(address), self._wanted) for address in self._addresses())
        if not is_alone and not self._is_kube_proxys():
            raise port_taken()
        self.port = self._wanted
        for address in _LOOPBACKS if self._host in UNSPECIFIED else ():
            self._listeners.add(address, self._wanted)
        if is_alone or self._serves_all:
            self.serve_all_addresses()
        return self._listeners.sockets

    def serve_all_addresses(self) -> None:
        """Steer the connections to all addresses here from now on."""
        self._serves_all = True
        for address in self._addresses() if self.port else ():
            self._listeners.add(address, self._wanted)

    def release(self) -> bool:
        """Leave new connections to the program that is bound to the port; return True."""
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
        health = ask_json((self._host, self._wanted), "/healthz")
        return isinstance(health, dict) and {"lastUpdated", "currentTime"} <= health.keys()


def port_taken() -> OSError:
    """Return the error of a port that another program listens at."""
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
