"""The server: it listens, stops and listens again, and keeps track of its connections.

The caller passes a listening socket, which may belong to any network namespace. Stopping does not
close it, because it could not be made again from outside: a socket that is shut down refuses
connections like a closed one, keeps its address, and can listen again.
"""

from __future__ import annotations

import errno
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bpfsvc.devtools.lab.apiserver.faults import Faults, Right
from bpfsvc.devtools.lab.apiserver.handler import Handler, Request
from bpfsvc.devtools.lab.apiserver.port_forward import Dial
from bpfsvc.devtools.lab.apiserver.replay import Step, replay
from bpfsvc.devtools.lab.apiserver.store import Record, Store
from bpfsvc.devtools.lab.apiserver.watches import Watch
from bpfsvc.devtools.lab.patience import stretched

_BACKLOG = 128
_PATIENCE = 10.0  # seconds for the threads of connections to end


class ApiServer:
    """An API server in threads of this process.

    ``certificate`` and ``key`` make it speak TLS; ``client_ca`` lets it accept client certificates
    of that CA (they need no token). ``history``: how many changes of each resource are remembered.
    ``Faults`` describes other switches.
    """

    def __init__(
        self,
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        client_ca: Path | None = None,
        history: int = 20_000,
        **switches: Any,
    ) -> None:
        self.store = Store(history)
        self.faults = Faults(**switches)
        self.asked: set[Right] = set()
        """The rights that requests have needed so far, allowed or not."""
        self._requests: deque[Request] = deque(maxlen=100_000)
        self.watches: list[Watch] = []
        """The watches that are open."""
        self.control: Callable[[str, bytes], Any] | None = None
        """Answers the requests below /control/."""
        self.dial: Dial | None = None
        """Connects to ports of Pods, for those who forward them."""
        self._tls = _context(certificate, key, client_ca) if certificate else None
        self._socket: socket.socket | None = None
        self._address: tuple[Any, ...] = ()
        self._lock = threading.Condition()
        self._listening = False
        self._closing = False
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._acceptor = threading.Thread(target=self._accept, name="api-accept", daemon=True)
        self.faults.on_change(self._wake)

    @property
    def requests(self) -> list[Request]:
        """A copy of the list of requests, oldest first."""
        return list(self._requests)

    def forget_requests(self) -> None:
        """Clear the list of requests."""
        self._requests.clear()

    def note(self, request: Request) -> None:
        """Add a request to the list."""
        self._requests.append(request)

    # -- listening ----------------------------------------------------------------------------

    def serve(self, listener: socket.socket) -> None:
        """Serve on a bound socket, in threads; returns at once. The socket is then the server's."""
        self._socket = listener
        listener.setblocking(True)
        listener.listen(_BACKLOG)
        self._address = listener.getsockname()
        self._listening = True
        self._acceptor.start()

    def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Bind, serve and return the URL."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        self.serve(listener)
        return self.url(host)

    def url(self, host: str = "127.0.0.1") -> str:
        """Return its URL at an address or name of its host."""
        scheme = "https" if self._tls else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._address[1])

    def go_away(self) -> None:
        """Refuse new connections, and end the open ones, until ``come_back``."""
        assert self._socket is not None
        with self._lock:
            self._listening = False
            self._socket.shutdown(socket.SHUT_RDWR)
            try:
                self._socket.bind(self._address)
            except OSError as error:
                # Only a port that the kernel had chosen was released and must be bound again.
                if error.errno != errno.EINVAL:
                    raise
        self.hang_up()

    def come_back(self) -> None:
        """Listen again, on the same address."""
        assert self._socket is not None
        with self._lock:
            self._socket.listen(_BACKLOG)
            self._listening = True
            self._lock.notify_all()

    def hang_up(self) -> None:
        """End all open connections, and continue to listen."""
        with self._lock:
            for connection in self._connections:
                self._quietly(partial(_shutdown, connection))
        self.faults.changed()

    def cut_watches(self, *, inside: bool = False) -> None:
        """Break all watches; ``inside``: in the middle of their next line."""
        for watch in list(self.watches):
            watch.cut(inside=inside)

    def close(self) -> None:
        """End everything; the threads have ended when this returns."""
        with self._lock:
            self._closing = True
            self._listening = False
            self._lock.notify_all()
            if self._socket is not None:
                self._quietly(partial(_shutdown, self._socket))
            threads = list(self._connections.values())
        if self._socket is not None:
            self._acceptor.join(stretched(_PATIENCE))
        self.hang_up()
        for thread in threads:
            thread.join(stretched(_PATIENCE))
        if self._socket is not None:
            self._socket.close()

    def __enter__(self) -> ApiServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- objects ------------------------------------------------------------------------------

    def put(self, raw: Mapping[str, Any]) -> Record:
        """Create or replace an object; watches get the event."""
        return self.store.put(raw)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object of a kind (``Service``) or plural; watches get the event."""
        self.store.delete(kind, namespace, name)

    def compact(self) -> None:
        """Forget history: watches and pages of earlier revisions get 410."""
        self.store.compact()

    def replay(self, directory: Path) -> Iterator[Step]:
        """Yield after each step of a recording (see ``replay``)."""
        return replay(self.store, directory)

    # -- connections --------------------------------------------------------------------------

    def certified(self, connection: socket.socket) -> bool:
        """True if a client has shown a certificate of the client CA."""
        return isinstance(connection, ssl.SSLSocket) and bool(connection.getpeercert())

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def _accept(self) -> None:
        assert self._socket is not None
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._listening or self._closing)
                if self._closing:
                    return
            try:
                accepted, address = self._socket.accept()
            except OSError:  # shut down: stopped, or closing
                continue
            thread = threading.Thread(
                target=self._converse, args=(accepted, address), name="api", daemon=True
            )
            with self._lock:
                if not self._listening:
                    accepted.close()
                    continue
                self._connections[accepted] = thread
            thread.start()

    def _converse(self, accepted: socket.socket, address: Any) -> None:
        connection = accepted
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self.faults.hold(lambda: self._closing)
                connection = self._tls.wrap_socket(
                    socket.socket(fileno=socket.dup(accepted.fileno())), server_side=True
                )
            Handler(connection, address, self)  # type: ignore[arg-type]
        except OSError:  # the client has closed, or was closed; errors of ssl are OSErrors, too
            pass
        finally:
            with self._lock:
                del self._connections[accepted]
            self._quietly(partial(_shutdown, accepted))
            if connection is not accepted:
                connection.close()
            accepted.close()

    def _wake(self) -> None:
        for watch in list(self.watches):
            watch.wake()

    @staticmethod
    def _quietly(act: Callable[[], None]) -> None:
        try:
            act()
        except OSError:  # it is shut down already
            return


def _shutdown(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def _context(certificate: Path, key: Path | None, client_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context
