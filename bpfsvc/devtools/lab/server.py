"""The server of every pod of a lab: it answers with its name and addresses, then echoes.

The protocol, on TCP, is made of lines:

* ``take N``: reads N bytes, answers their SHA-256 in hexadecimal and a newline;
* ``send N``: answers N bytes of ``PATTERN``;
* any other line: answers one line of JSON, ``{"pod": NAME, "peer": "IP:PORT", "local": "IP:PORT"}``
  (addresses as the server sees them), and from then on echoes every byte.

On UDP each datagram is one request: ``take ...`` answers the digest of that datagram, ``send N``
one datagram of N bytes, ``echo ...`` itself, anything else the JSON line. An answer leaves from the
address that the request was sent to, which matters on a machine with several addresses.

Connections stay open until the client closes. The parent makes the listening sockets, so they
accept before this process runs. It uses the standard library only (see ``namespace.script``), one
thread and epoll, which serves thousands of connections on one core.
"""

from __future__ import annotations

import hashlib
import json
import select
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

PATTERN = bytes(range(256)) * 256
_CHUNK = 1 << 16
_HIGH_WATER = 1 << 20  # unsent bytes above which no more is read from a connection
_IP_PKTINFO = 8


def endpoint_text(name: tuple[str, int]) -> str:
    """Return ``1.2.3.4:80`` or ``[fd00::1]:80``."""
    return f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"


@dataclass(slots=True)
class Connection:
    """One accepted connection: the bytes read of a line, and the bytes still to send."""

    socket: socket.socket
    greeting: bytes
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    to_send: int = 0  # bytes of PATTERN still to send
    to_take: int = 0
    digest: hashlib._Hash | None = None
    echoing: bool = False
    closing: bool = False
    events: int = select.EPOLLIN

    def feed(self, data: bytes) -> None:
        """Act on bytes received."""
        if self.echoing:
            self.unsent += data
            return
        self.received += data
        while self.received and not self.echoing:
            if self.digest is not None:
                self._take()
            elif (end := self.received.find(b"\n")) >= 0:
                line = bytes(self.received[:end])
                del self.received[: end + 1]
                self._command(line)
            else:
                return
        if self.echoing and self.received:
            self.unsent += self.received
            self.received.clear()

    def _command(self, line: bytes) -> None:
        word, _, number = line.partition(b" ")
        if word == b"take" and number.isdigit():
            self.to_take, self.digest = int(number), hashlib.sha256()
            self._take()
        elif word == b"send" and number.isdigit():
            self.to_send += int(number)
        else:
            self.unsent += self.greeting
            self.echoing = True

    def _take(self) -> None:
        assert self.digest is not None
        part = self.received[: self.to_take]
        del self.received[: self.to_take]
        self.to_take -= len(part)
        self.digest.update(part)
        if self.to_take == 0:
            self.unsent += self.digest.hexdigest().encode() + b"\n"
            self.digest = None

    def flush(self) -> bool:
        """Send what can be sent without waiting; return False at the end of the connection."""
        while self.unsent or self.to_send:
            if not self.unsent:
                portion = min(self.to_send, len(PATTERN))
                self.unsent += PATTERN[:portion]
                self.to_send -= portion
            try:
                sent = self.socket.send(self.unsent)
            except BlockingIOError:
                return True
            del self.unsent[:sent]
        return not self.closing

    def wanted(self) -> int:
        """Return the events to wait for."""
        events = 0
        if not self.closing and len(self.unsent) < _HIGH_WATER:
            events |= select.EPOLLIN
        if self.unsent or self.to_send:
            events |= select.EPOLLOUT
        return events


class Server:
    """The event loop over listening sockets, datagram sockets and connections."""

    def __init__(self, name: str, descriptors: list[int]) -> None:
        self.name = name
        self.poll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.listeners: dict[int, socket.socket] = {}
        self.datagrams: dict[int, socket.socket] = {}
        for descriptor in descriptors:
            made = socket.socket(fileno=descriptor)
            made.setblocking(False)
            if made.type == socket.SOCK_STREAM:
                self.listeners[descriptor] = made
            else:
                self.datagrams[descriptor] = made
                if made.family == socket.AF_INET:
                    made.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
                else:
                    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
            self.poll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        """Serve for ever."""
        while True:
            for descriptor, _ in self.poll.poll():
                if descriptor in self.listeners:
                    self._accept(self.listeners[descriptor])
                elif descriptor in self.datagrams:
                    self._answer_datagrams(self.datagrams[descriptor])
                else:
                    self._converse(self.connections[descriptor])

    def _greeting(self, peer: tuple[str, int], local: tuple[str, int]) -> bytes:
        answer = {"pod": self.name, "peer": endpoint_text(peer), "local": endpoint_text(local)}
        return json.dumps(answer).encode() + b"\n"

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                accepted, peer = listener.accept()
                local = accepted.getsockname()
            except BlockingIOError:
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(accepted, self._greeting(peer[:2], local[:2]))
            self.connections[accepted.fileno()] = connection
            self.poll.register(accepted, select.EPOLLIN)

    def _converse(self, connection: Connection) -> None:
        try:
            if connection.events & select.EPOLLIN:
                data = connection.socket.recv(_CHUNK)
                if data:
                    connection.feed(data)
                else:
                    connection.closing = True
            alive = connection.flush()
        except BlockingIOError:
            alive = connection.flush()
        except OSError:  # reset or timed out: the client is gone
            alive = False
        if not alive:
            descriptor = connection.socket.fileno()
            self.poll.unregister(descriptor)
            del self.connections[descriptor]
            connection.socket.close()
        elif (wanted := connection.wanted()) != connection.events:
            self.poll.modify(connection.socket, wanted)
            connection.events = wanted

    def _answer_datagrams(self, listening: socket.socket) -> None:
        for _ in range(64):
            try:
                data, control, _, peer = listening.recvmsg(_CHUNK, 128)
            except BlockingIOError:
                return
            except OSError:  # an ICMP error about an earlier answer
                continue
            where = control[0][2]
            port = listening.getsockname()[1]
            if listening.family == socket.AF_INET:
                address = socket.inet_ntop(socket.AF_INET, where[8:12])
                # From the address that the request was sent to, by the interface of the route.
                origin = (socket.IPPROTO_IP, _IP_PKTINFO, struct.pack("i4s4s", 0, where[8:12], b""))
            else:
                address = socket.inet_ntop(socket.AF_INET6, where[:16])
                origin = (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, where[:16] + bytes(4))
            try:
                listening.sendmsg([self._reply(data, peer[:2], (address, port))], [origin], 0, peer)
            except OSError:  # no route back, or no room: to the client a lost datagram
                continue

    def _reply(self, data: bytes, peer: tuple[str, int], local: tuple[str, int]) -> bytes:
        word, _, rest = data.partition(b" ")
        if word == b"take":
            return hashlib.sha256(data).hexdigest().encode() + b"\n"
        if word == b"send" and rest.strip().isdigit():
            return PATTERN[: int(rest)]
        if word == b"echo":
            return data
        return self._greeting(peer, local)


def main(words: Sequence[str]) -> None:
    """Serve: the name to answer with, then the descriptors of the sockets."""
    Server(words[0], [int(word) for word in words[1:]]).run()
