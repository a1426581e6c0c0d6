"""Clients that have connected to an HTTP server and not sent a whole request yet.

No client can hold a server up. One thread waits for all; their number, the size of a request and
the time for it are limited. When there are too many clients, the oldest connection is closed.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

_Context = TypeVar("_Context")

_MAX_REQUEST_BYTES = 16384

_NO_FILES_PAUSE = 0.1
"""Seconds to wait when the process has no file descriptors left."""


_QUIET_SECONDS = 0.05
_FINISH_SECONDS = 1.0
"""At the end a server waits until nothing has come for the first time, at most for the second."""


class _Client(NamedTuple, Generic[_Context]):
    context: _Context
    received: bytearray
    deadline: float


class RequestReader(Generic[_Context]):
    """The clients of one server, all in the thread that waits on ``selector``."""

    def __init__(
        self, selector: selectors.BaseSelector, *, timeout_seconds: float, max_clients: int
    ) -> None:
        """``timeout_seconds``: for a whole request."""
        self._selector = selector
        self._timeout_seconds = timeout_seconds
        self._max_clients = max_clients
        self._clients: dict[socket.socket, _Client[_Context]] = {}

    def accept(
        self, listener: socket.socket, context_of: Callable[[socket.socket], _Context | None]
    ) -> None:
        """Accept a client; :meth:`receive` returns its context with its request.

        A client without a context is closed.
        """
        try:
            client, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return  # or the client has gone again
        context = context_of(client)
        if context is None:
            client.close()
            return
        if len(self._clients) >= self._max_clients:
            self._make_room()
        client.setblocking(False)
        deadline = time.monotonic() + self._timeout_seconds
        self._clients[client] = _Client(context, bytearray(), deadline)
        self._selector.register(client, selectors.EVENT_READ)

    def receive(self, client: socket.socket) -> tuple[_Context, bytes] | None:
        """Read from a client; return its context and its request once the request is complete.

        Then the socket belongs to the caller, who answers and closes it.
        """
        state = self._clients.get(client)
        if state is None:
            return None
        try:
            data = client.recv(_MAX_REQUEST_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        state.received.extend(data)
        if b"\r\n\r\n" in state.received or b"\n\n" in state.received:
            self._forget(client)
            return state.context, bytes(state.received)
        if not data or len(state.received) >= _MAX_REQUEST_BYTES:
            self._close(client)
        return None

    def close_expired(self, now: float) -> None:
        """Close the connections of clients that took too long."""
        for client in [client for client, state in self._clients.items() if state.deadline < now]:
            self._close(client)

    def finish(self, handle: Callable[[selectors.SelectorKey], None]) -> None:
        """Handle what still comes until nothing does: clients that connected get their answer."""
        ends = time.monotonic() + _FINISH_SECONDS
        while time.monotonic() < ends:
            events = self._selector.select(timeout=_QUIET_SECONDS)
            if not events and not self._clients:
                return
            for key, _ in events:
                handle(key)

    def close(self) -> None:
        """Close all connections."""
        for client in list(self._clients):
            self._close(client)

    def _make_room(self) -> None:
        """Close the oldest connection; without any, wait until other files are closed."""
        if self._clients:
            self._close(next(iter(self._clients)))
        else:
            time.sleep(_NO_FILES_PAUSE)

    def _close(self, client: socket.socket) -> None:
        self._forget(client)
        client.close()

    def _forget(self, client: socket.socket) -> None:
        del self._clients[client]
        self._selector.unregister(client)
