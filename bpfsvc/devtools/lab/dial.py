"""Clients of tests: one connection or datagram, or many, from any namespace, and the result.

They run in the calling process with sockets of other namespaces (see ``namespace``), so a failure
is an ordinary Python exception: ``ConnectionRefusedError``, ``ConnectionResetError``,
``TimeoutError``, ``OSError`` with EHOSTUNREACH, and so on.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import socket
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Literal, NamedTuple, Self

from bpfsvc.devtools.lab.namespace import LabError, Namespace
from bpfsvc.devtools.lab.patience import stretched
from bpfsvc.devtools.lab.server import PATTERN, endpoint_text

Protocol = Literal["tcp", "udp"]
Option = tuple[int, int, int | bytes]
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_BATCH = 100


class Reply(NamedTuple):
    """A connection: the report of the server, and of the client's socket.

    All but ``pod`` are ``address:port`` texts: ``peer`` and ``local`` as the server sees them,
    ``own`` and ``remote`` as getsockname and getpeername (or recvfrom) return them to the client.
    """

    pod: str
    peer: str
    local: str
    own: str
    remote: str


class OpenConnection:
    """An open TCP connection to an echo server."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close in the ordinary way (FIN)."""
        self.socket.close()

    def reset(self) -> None:
        """Close with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def who(self) -> Reply:
        """Ask the server for its name. From then on it echoes."""
        self.socket.sendall(b"who\n")
        return _answer(self._line(), self.socket, self.socket.getpeername())

    def echo(self, data: bytes) -> bool:
        """True if ``data`` comes back unchanged; only after ``who``."""
        self.socket.sendall(data)
        return self._exactly(len(data)) == data

    def fetch(self, size: int) -> bool:
        """True if ``size`` bytes arrive intact from the server; only before ``who``."""
        self.socket.sendall(b"send %d\n" % size)
        received = self._exactly(size)
        return received == (PATTERN * (size // len(PATTERN) + 1))[:size]

    def deliver(self, size: int) -> bool:
        """True if ``size`` bytes arrive intact at the server; only before ``who``."""
        data = (PATTERN * (size // len(PATTERN) + 1))[:size]
        self.socket.sendall(b"take %d\n" % size + data)
        return self._line().strip().decode() == hashlib.sha256(data).hexdigest()

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += self._some(1 << 16)
        return line

    def _exactly(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            received += self._some(size - len(received))
        return bytes(received)

    def _some(self, most: int) -> bytes:
        data = self.socket.recv(most)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "the server closed the connection")
        return data


def connect(
    namespace: Namespace,
    address: str,
    port: int,
    *,
    source: tuple[str, int] | None = None,
    options: Iterable[Option] = (),
    timeout: float = 2.0,
) -> OpenConnection:
    """Open a TCP connection from a namespace; ``OSError`` if that fails.

    ``source``: the (address, port) to bind to, with SO_REUSEADDR; "" and 0 mean any.
    """
    made = namespace.socket(_family(address))
    try:
        _prepare(made, source, options, timeout)
        made.connect((address, port))
    except OSError:
        made.close()
        raise
    return OpenConnection(made)


def disconnect(made: socket.socket) -> None:
    """Disconnect a socket (connect(2), AF_UNSPEC); it may connect again."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(made.fileno(), bytes(16), 16):
        raise OSError(ctypes.get_errno(), "connect")


def ask(
    namespace: Namespace,
    address: str,
    port: int,
    protocol: Protocol = "tcp",
    *,
    source: tuple[str, int] | None = None,
    options: Iterable[Option] = (),
    timeout: float = 2.0,
    connected: bool = True,
) -> Reply:
    """Ask the server at an address for its name; ``OSError`` without an answer.

    ``connected=False`` (UDP): by sendto and recvfrom on a socket that is not connected.
    """
    with namespace.socket(_family(address), _KINDS[protocol]) as made:
        _prepare(made, source, options, timeout)
        return _ask(made, (address, port), connected or protocol == "tcp")


def tally(
    namespace: Namespace,
    address: str,
    port: int,
    protocol: Protocol = "tcp",
    *,
    count: int = 100,
    timeout: float = 2.0,
    connected: bool = True,
) -> Counter[str]:
    """Ask ``count`` times, each on a new socket, and count the answers by pod.

    Failures are counted as ``refused``, ``reset``, ``timeout``, ``unreachable`` or the name of
    the errno.
    """
    counts: Counter[str] = Counter()
    for start in range(0, count, _BATCH):
        batch = namespace.sockets(min(_BATCH, count - start), _family(address), _KINDS[protocol])
        for made in batch:
            with made:
                made.settimeout(stretched(timeout))
                counts[_outcome(made, (address, port), connected or protocol == "tcp")] += 1
    return counts


def outcome(error: OSError) -> str:
    """Return the name of a failure, as ``tally`` counts it."""
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return "reset"
    if isinstance(error, TimeoutError):
        return "timeout"
    if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH):
        return "unreachable"
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _outcome(made: socket.socket, to: tuple[str, int], connected: bool) -> str:
    try:
        return _ask(made, to, connected).pod
    except OSError as error:
        return outcome(error)


def _ask(made: socket.socket, to: tuple[str, int], connected: bool) -> Reply:
    if not connected:
        made.sendto(b"who\n", to)
        data, sender = made.recvfrom(1 << 16)
        return _answer(data, made, sender)
    made.connect(to)
    if made.type == socket.SOCK_STREAM:
        # Wrapped, not closed: the caller owns the socket.
        return OpenConnection(made).who()
    made.send(b"who\n")
    return _answer(made.recv(1 << 16), made, made.getpeername())


def _answer(line: bytes, made: socket.socket, remote: tuple[str, int]) -> Reply:
    try:
        said = json.loads(line)
        own = endpoint_text(made.getsockname()[:2])
        return Reply(said["pod"], said["peer"], said["local"], own, endpoint_text(remote[:2]))
    except (ValueError, KeyError) as error:
        raise LabError(f"not the answer of an echo server: {line[:80]!r}") from error


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _prepare(
    made: socket.socket, source: tuple[str, int] | None, options: Iterable[Option], timeout: float
) -> None:
    made.settimeout(stretched(timeout))
    for level, name, value in options:
        made.setsockopt(level, name, value)
    if source is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(source)
