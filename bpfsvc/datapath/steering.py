"""Ports that this process answers at without being bound to them (``BPF_PROG_TYPE_SK_LOOKUP``).

kube-proxy and the agent answer at the same ports: the port of ``/healthz`` and each
``healthCheckNodePort``. While one of them is bound to a port, the other cannot bind it, and
kube-proxy tries again only when it synchronises, every 30 seconds: so a change from one to the
other would be an outage for load balancers. This program sees each new TCP connection that the
network namespace receives, and gives connections to certain ports to a listener of this process.
When this process has gone, another program that is bound to the port gets them at once.

The program and its maps are not pinned; they end with the process, whatever ends the process.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.base.address import pack
from bpfsvc.datapath import syscall
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.instructions import R0, R1, R2, R3, R6, STACK, Code
from bpfsvc.datapath.loader.creation import create_map, load_program
from bpfsvc.datapath.maps.layout import MapLayout, Record

_HASH, _SOCKMAP = "hash", "15"
"""Types of maps; the second has no name in layouts. (BPF_MAP_TYPE_SOCKMAP)"""

_SK_LOOKUP, _AT_SK_LOOKUP = 30, 36
_LOOKUP_ELEMENT, _RELEASE, _ASSIGN = 1, 86, 124
_PASS = 1

_FAMILY, _PROTOCOL, _ADDRESS_V4, _ADDRESS_V6, _PORT = 8, 12, 40, 44, 60
"""Offsets in ``struct bpf_sk_lookup``; the last three are what the client connects to."""

_KEY = struct.Struct("=16sI")
"""An address of 16 bytes, all zero after the prefix of its family: any. And a port."""

_KEY_AT, _SLOT_AT = -24, -32
"""Where they are on the program's stack."""

_MAX_PORTS = 65536
_MAX_SLOTS = 64
_BACKLOG = 1024


class Steering:
    """The program, attached to the network namespace of this process. ``OSError`` if it cannot."""

    def __init__(self) -> None:
        self._ports = _make_map(_HASH, _KEY.size, 4, _MAX_PORTS, "bpfsvc_ports")
        self._sockets = _make_map(_SOCKMAP, 4, 4, _MAX_SLOTS, "bpfsvc_answers")
        self._free_slots = list(range(0, _MAX_SLOTS, 2))
        program = load_program(
            "bpfsvc_answer",
            _SK_LOOKUP,
            _AT_SK_LOOKUP,
            _program(self._ports.fd, self._sockets.fd),
            "GPL",
        )
        try:
            with Path("/proc/self/ns/net").open("rb") as namespace:
                self._link = syscall.link_create(program, namespace.fileno(), _AT_SK_LOOKUP)
        finally:
            os.close(program)

    def listen(self) -> SteeredListeners:
        """Return new listeners, to which no port leads yet."""
        return SteeredListeners(self._ports, self._sockets, self._free_slots.pop())

    def close(self) -> None:
        """Detach the program. New connections go to the program that is bound to the port."""
        os.close(self._link)
        self._ports.close()
        self._sockets.close()


class SteeredListeners:
    """Listening sockets of both families, as far as there are two, and the ports that lead there.

    An accepted connection's ``getsockname()`` is what its client connected to.
    """

    def __init__(self, ports: Map, sockets: Map, slot: int) -> None:
        self._ports = ports
        self._slot = struct.pack("=I", slot)
        self._keys: set[bytes] = set()
        self.sockets = tuple(_loopback_listeners())
        for listener in self.sockets:
            of_family = slot + (listener.family == socket.AF_INET6)
            sockets.update(struct.pack("=I", of_family), struct.pack("=I", listener.fileno()))

    def add(self, address: bytes, port: int) -> None:
        """Receive connections to a port at an address; a wildcard means all of its family."""
        key = _KEY.pack(address, port)
        self._ports.update(key, self._slot)
        self._keys.add(key)

    def remove(self, address: bytes, port: int) -> None:
        """Receive no new connections to a port at an address."""
        key = _KEY.pack(address, port)
        self._keys.discard(key)
        self._ports.delete(key)

    def remove_all(self) -> None:
        """Receive no new connections; those that have come can still be accepted."""
        for key in self._keys:
            self._ports.delete(key)
        self._keys.clear()

    def close(self) -> None:
        """Close the sockets."""
        for listener in self.sockets:
            listener.close()


def _loopback_listeners() -> Iterator[socket.socket]:
    """Yield one socket for each family. Only programs of this node can reach it otherwise."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            opened = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # the kernel has no IPv6
        # Accepted connections inherit the option. Without it, accepted connections would keep
        # other programs from binding the port that the clients connected to.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((host, 0))
            opened.listen(_BACKLOG)
        except OSError as error:
            opened.close()
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            continue  # IPv6 is switched off
        opened.setblocking(False)
        yield opened


def _make_map(kind: str, key: int, value: int, entries: int, name: str) -> Map:
    layout = MapLayout(kind, Record((("", f"{key}x"),)), Record((("", f"{value}x"),)), entries, 0)
    return Map(create_map(name, layout), name)


def _program(ports: int, sockets: int) -> bytes:
    """Return the code: address and port, then any address and port, lead to a slot."""
    any_v4 = pack("0.0.0.0")
    code = Code()
    code.move(R6, R1)
    code.load(R2, R6, _PROTOCOL, 4)
    code.if_unlike(R2, socket.IPPROTO_TCP, "pass")
    code.load(R2, R6, _PORT, 4)
    code.store(STACK, _KEY_AT + 16, R2, 4)
    code.load(R3, R6, _FAMILY, 4)
    code.if_unlike(R3, socket.AF_INET, "v6")
    code.write(STACK, any_v4[:12], _KEY_AT)
    code.load(R2, R6, _ADDRESS_V4, 4)
    code.store(STACK, _KEY_AT + 12, R2, 4)
    _look_up(code, ports)
    code.if_unlike(R0, 0, "found")
    code.write(STACK, any_v4, _KEY_AT)
    _look_up(code, ports)
    code.if_unlike(R0, 0, "found")
    code.leave(_PASS)
    code.mark("v6")
    for word in range(0, 16, 4):
        code.load(R2, R6, _ADDRESS_V6 + word, 4)
        code.store(STACK, _KEY_AT + word, R2, 4)
    _look_up(code, ports)
    code.if_unlike(R0, 0, "found")
    code.write(STACK, bytes(16), _KEY_AT)
    _look_up(code, ports)
    code.if_unlike(R0, 0, "found")
    code.mark("pass")
    code.leave(_PASS)
    code.mark("found")
    _assign(code, sockets)
    return code.finish()


def _assign(code: Code, sockets: int) -> None:
    """Give the connection to the socket of its family behind the slot that R0 points to."""
    code.load(R2, R0, 0, 4)
    code.load(R3, R6, _FAMILY, 4)
    code.if_unlike(R3, socket.AF_INET6, "slot")
    code.calculate(R2, "+", 1)
    code.mark("slot")
    code.store(STACK, _SLOT_AT, R2, 4)
    code.map(R1, sockets)
    code.move(R2, STACK)
    code.calculate(R2, "+", _SLOT_AT)
    code.call(_LOOKUP_ELEMENT)
    code.if_unlike(R0, 0, "assign")
    code.leave(_PASS)
    code.mark("assign")
    code.move(R1, R6)
    code.move(R2, R0)
    code.move(R6, R0)
    code.calculate(R3, "=", 0)
    code.call(_ASSIGN)
    code.move(R1, R6)
    code.call(_RELEASE)
    code.leave(_PASS)


def _look_up(code: Code, ports: int) -> None:
    """Have R0 point to the slot of the key on the stack, or be 0."""
    code.map(R1, ports)
    code.move(R2, STACK)
    code.calculate(R2, "+", _KEY_AT)
    code.call(_LOOKUP_ELEMENT)
