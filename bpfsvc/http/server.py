"""A small HTTP server: a few pages for probes and for Prometheus.

Any client on the network may reach its address, and no client can hold it up. One thread waits for
the requests of all clients, and a few workers build and send responses that take long.

This server and the health checks of Services (:mod:`bpfsvc.http.service_health`) read requests with
the same code. The standard library's servers take a thread for each client and for each address:
2,000 health checks take 38 MB and 5 % of a CPU when idle with ThreadingHTTPServer, and 2 MB and
0.1 % here.

An address that is in use is tried again until it is free, as kube-proxy does: the pod that is being
replaced may still have the address.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from email.utils import formatdate
from http import HTTPStatus
from queue import SimpleQueue
from typing import NamedTuple

from bpfsvc.base.errors import UsageError
from bpfsvc.base.texts import SERVER_NAME
from bpfsvc.http.ports import BoundPort, ServerPort
from bpfsvc.http.request_reader import RequestReader

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

RETRY_SECONDS = 5.0
"""Between two attempts to get the address."""

_CLIENT_TIMEOUT_SECONDS = 10.0
"""For a client to send a request, and again to receive the response."""

_MAX_CLIENTS = 64
_ANY = "any"
"""All clients of this server get the same pages."""

_MAX_QUEUED = 16
"""Requests that may wait for a worker."""


class Request(NamedTuple):
    """A request; the names of headers are in lower case. ``query``: what comes after the ``?``."""

    path: str
    headers: Mapping[str, str]
    query: str = ""


class Response(NamedTuple):
    """A response. ``body`` may have parts, which are sent one after the other.

    ``stream`` is handed the connection after that, and closes it. Then the body has no length: it
    ends with the connection. A client that is gone already is handed over, too.
    """

    status: int
    body: bytes | list[bytes]
    type: str = TEXT
    headers: Mapping[str, str] = {}
    stream: Callable[[socket.socket], None] | None = None


Route = Callable[[Request], Response]


class HttpServer:
    """Serves pages at one address, in threads of its own."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        routes: Mapping[str, Route],
        log: Callable[[str], None],
        *,
        workers: int = 0,
        hard_fail: bool = False,
        retry_seconds: float = RETRY_SECONDS,
        client_timeout: float = _CLIENT_TIMEOUT_SECONDS,
        server_port: ServerPort | None = None,
        admits: Callable[[socket.socket], bool] = lambda _: True,
    ) -> None:
        """Open nothing before :meth:`start`.

        * ``name``: for messages, and for the threads.
        * ``routes``: by path. Other paths are not found.
        * ``workers``: threads that run routes; without any, routes must be quick and responses
          small.
        * ``hard_fail``: an address in use is an error, and not tried again.
        * ``client_timeout``: seconds for a client to send a request, and again to receive the
          response.
        * ``server_port``: where to listen; a port bound to the address by default.
        * ``admits(client)``: False closes the connection of a client at once.
        """
        self._name = name
        self._address = address
        self._routes = routes
        self._log = log
        self._hard_fail = hard_fail
        self._retry_seconds = retry_seconds
        self._client_timeout = client_timeout
        self._admits = admits
        self._stopped = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._server_port: ServerPort = server_port or BoundPort(*address)
        self._listeners: tuple[socket.socket, ...] = ()
        self._last_error = ""
        self._reader: RequestReader[str] = RequestReader(
            self._selector, timeout_seconds=client_timeout, max_clients=_MAX_CLIENTS
        )
        self._queue: SimpleQueue[tuple[socket.socket, bytes] | None] = SimpleQueue()
        self._workers = [self._thread(self._work) for _ in range(workers)]
        self._loop = self._thread(self._run)

    @property
    def port(self) -> int:
        """The port that is listened on; 0 while there is none."""
        return self._server_port.port

    def start(self) -> None:
        """Serve from now on, or as soon as the address is free.

        Raises :class:`UsageError` with ``hard_fail`` if the address cannot be bound now.
        """
        self._open()
        for thread in (self._loop, *self._workers):
            thread.start()

    def stop(self) -> None:
        """Close everything and wait for the threads. Once only."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)
        for _ in self._workers:
            self._queue.put(None)
        for thread in (self._loop, *self._workers):
            if thread.ident is not None:
                thread.join(timeout=1)  # one that is still sending is not waited for
        if self._loop.is_alive():
            return
        self._reader.close()
        self._server_port.close()
        self._selector.close()
        os.close(self._wake)

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=self._name, daemon=True)

    # -- in the listening thread --

    def _run(self) -> None:
        retry_at = time.monotonic() + self._retry_seconds
        while not self._stopped:
            for key, _ in self._selector.select(timeout=min(1.0, self._retry_seconds)):
                if key.fd != self._wake:
                    self._handle(key)
            now = time.monotonic()
            if not self._listeners and now >= retry_at:
                self._open()
                retry_at = now + self._retry_seconds
            self._reader.close_expired(now)
        if self._listeners and self._server_port.release():
            self._selector.unregister(self._wake)
            self._reader.finish(self._handle)

    def _handle(self, key: selectors.SelectorKey) -> None:
        ready: socket.socket = key.fileobj  # type: ignore[assignment]
        if ready in self._listeners:
            self._reader.accept(ready, lambda client: _ANY if self._admits(client) else None)
        elif received := self._reader.receive(ready):
            self._dispatch(ready, received[1])

    def _open(self) -> None:
        host, port = self._address
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if not port:
            where = host  # a local socket; no configuration has port 0
        try:
            self._listeners = self._server_port.open()
        except OSError as error:
            text = f"cannot serve {self._name} at {where}: {error.strerror or error}"
            if self._hard_fail:
                raise UsageError(
                    text, "stop the program that listens there, or choose another address"
                ) from error
            if text != self._last_error:
                self._last_error = text
                self._log(f"{text}; trying again every {self._retry_seconds:g} s")
            return
        if self._last_error:
            self._last_error = ""
            self._log(f"{self._name} is served at {where} now")
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)

    def _dispatch(self, client: socket.socket, raw: bytes) -> None:
        if not self._workers:
            self._respond(client, raw)
        elif self._queue.qsize() < _MAX_QUEUED:
            self._queue.put((client, raw))
        else:
            busy = Response(HTTPStatus.SERVICE_UNAVAILABLE, b"too many requests\n")
            self._send(client, busy, is_head=raw.startswith(b"HEAD "))

    # -- in any thread --

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            self._respond(*job)

    def _respond(self, client: socket.socket, raw: bytes) -> None:
        self._send(client, self._response(raw), is_head=raw.startswith(b"HEAD "))

    def _response(self, raw: bytes) -> Response:
        method, request = _read(raw)
        if request is None:
            return Response(HTTPStatus.BAD_REQUEST, b"400 bad request\n")
        route = self._routes.get(request.path)
        if route is None:
            return Response(HTTPStatus.NOT_FOUND, b"404 page not found\n")
        if method not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"405 use GET\n", headers=allowed)
        try:
            return route(request)
        except Exception as error:  # the other pages still work
            self._log(f"{self._name}: {request.path} failed: {type(error).__name__}: {error}")
            return Response(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode())

    def _send(self, client: socket.socket, response: Response, *, is_head: bool) -> None:
        parts = [response.body] if isinstance(response.body, bytes) else response.body
        deadline = time.monotonic() + self._client_timeout
        length = None if response.stream else sum(map(len, parts))
        with ExitStack() as ending:
            ending.callback(response.stream or socket.socket.close, client)
            try:
                for part in (_head(response, length), *(() if is_head else parts)):
                    client.settimeout(max(0.001, deadline - time.monotonic()))
                    client.sendall(part)
                if not response.stream:
                    client.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the client did not wait for the response


def encode(response: Response, *, is_head: bool = False) -> bytes:
    """Return a response as it is sent."""
    parts: Iterable[bytes] = [response.body] if isinstance(response.body, bytes) else response.body
    body = b"".join(parts)
    return _head(response, len(body)) + (b"" if is_head else body)


def _head(response: Response, length: int | None) -> bytes:
    headers = {
        "Content-Type": response.type,
        "X-Content-Type-Options": "nosniff",
        **response.headers,
        "Server": SERVER_NAME,
        "Date": formatdate(usegmt=True),
        **({} if length is None else {"Content-Length": str(length)}),
        "Connection": "close",
    }
    status = HTTPStatus(response.status)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read(raw: bytes) -> tuple[str, Request | None]:
    """Return the method of a request, and the request; None if it is malformed."""
    first, *rest = raw.decode("latin-1").splitlines()
    words = first.split()
    if len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/"):
        return "", None
    headers: dict[str, str] = {}
    for line in rest:
        name, colon, value = line.partition(":")
        if not colon:
            break  # the empty line: a body, if any, is not read
        headers[name.strip().lower()] = value.strip()
    path, _, query = words[1].partition("?")
    return words[0], Request(path, headers, query)
