"""A small HTTP server: a few pages, asked for by probes and by whoever collects metrics.

It stands on addresses that anybody may reach, so nobody may hold it up. One thread waits on all
peers at once until their requests are complete, and the oldest that is still talking makes room
for the next. What takes long to make, or to send, is left to a few workers. The standard library's
server would take a thread for each peer, and 3 MB of memory for protocols that nobody speaks here.

An address that cannot be had is tried again for as long as it takes, as kube-proxy does: the pod
that is being replaced may still have it.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from queue import SimpleQueue
from typing import NamedTuple

from bpfsvc.errors import UsageError
from bpfsvc.talks import Talks

TEXT = "text/plain; charset=utf-8"
JSON = "application/json"

_RETRY_SECONDS = 5.0
"""Between two attempts to get the address."""

_PATIENCE = 10.0
"""Seconds that a peer has to say what it wants, and again to take the answer."""

_MOST_PEERS = 64
_MOST_WAITING = 16
"""Peers that may wait for a worker."""

_BACKLOG = 128
_UNSPECIFIED = ("", "0.0.0.0", "::")


class Request(NamedTuple):
    """What is asked for; names of headers are in lower case."""

    path: str
    headers: Mapping[str, str]


class Page(NamedTuple):
    """An answer. ``body`` may come in parts, which are sent one after the other."""

    status: int
    body: bytes | list[bytes]
    type: str = TEXT
    headers: Mapping[str, str] = {}


Route = Callable[[Request], Page]


class Pages:
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
        retry_seconds: float = _RETRY_SECONDS,
        patience: float = _PATIENCE,
    ) -> None:
        """Nothing is opened before :meth:`start`.

        * ``name``: for messages, and for the threads.
        * ``routes``: pages by path. Others are not found.
        * ``workers``: threads that make pages; with none, pages must be quick and small.
        * ``hard_fail``: an address that cannot be had is an error instead of tried again.
        """
        self._name = name
        self._address = address
        self._routes = routes
        self._log = log
        self._hard_fail = hard_fail
        self._retry_seconds = retry_seconds
        self._patience = patience
        self._stopped = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._listener: socket.socket | None = None
        self._complaint = ""
        self._talks: Talks[None] = Talks(self._selector, patience=patience, most=_MOST_PEERS)
        self._waiting: SimpleQueue[tuple[socket.socket, bytes] | None] = SimpleQueue()
        self._workers = [self._thread(self._work) for _ in range(workers)]
        self._loop = self._thread(self._run)

    @property
    def port(self) -> int:
        """The port that is listened on; 0 while there is none."""
        return int(self._listener.getsockname()[1]) if self._listener else 0

    def start(self) -> None:
        """Serve from now on, or as soon as the address can be had.

        Raises :class:`UsageError` with ``hard_fail``, if it cannot be had now.
        """
        self._open()
        for thread in (self._loop, *self._workers):
            thread.start()

    def stop(self) -> None:
        """Close everything and wait for the end. Once only."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)
        for _ in self._workers:
            self._waiting.put(None)
        for thread in (self._loop, *self._workers):
            if thread.ident is not None:
                thread.join(timeout=1)  # one that is still sending is not waited for
        if self._loop.is_alive():
            return
        self._talks.close()
        if self._listener:
            self._listener.close()
        self._listener = None
        self._selector.close()
        os.close(self._wake)

    def _thread(self, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=self._name, daemon=True)

    # -- in the thread that listens --

    def _run(self) -> None:
        retry_at = time.monotonic() + self._retry_seconds
        while not self._stopped:
            for key, _ in self._selector.select(timeout=min(1.0, self._retry_seconds)):
                if key.fd == self._wake:
                    continue
                end: socket.socket = key.fileobj  # type: ignore[assignment]
                if end is self._listener:
                    self._talks.accept(end, None)
                elif said := self._talks.hear(end):
                    self._hand_over(end, said[1])
            now = time.monotonic()
            if self._listener is None and now >= retry_at:
                self._open()
                retry_at = now + self._retry_seconds
            self._talks.give_up(now)

    def _open(self) -> None:
        host, port = self._address
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self._listener = listener(host, port, both_families=host in _UNSPECIFIED)
        except OSError as error:
            text = f"cannot serve {self._name} at {place}: {error.strerror or error}"
            if self._hard_fail:
                raise UsageError(
                    text, "find out who listens there, or choose another address"
                ) from error
            if text != self._complaint:
                self._complaint = text
                self._log(f"{text}; trying again every {self._retry_seconds:g} s")
            return
        if self._complaint:
            self._complaint = ""
            self._log(f"{self._name} is served at {place} now")
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _hand_over(self, peer: socket.socket, raw: bytes) -> None:
        if not self._workers:
            self._answer(peer, raw)
        elif self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put((peer, raw))
        else:
            busy = Page(HTTPStatus.SERVICE_UNAVAILABLE, b"too many requests\n")
            self._send(peer, busy, is_head=raw.startswith(b"HEAD "))

    # -- in any thread --

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            self._answer(*job)

    def _answer(self, peer: socket.socket, raw: bytes) -> None:
        self._send(peer, self._page(raw), is_head=raw.startswith(b"HEAD "))

    def _page(self, raw: bytes) -> Page:
        method, request = _read(raw)
        if request is None:
            return Page(HTTPStatus.BAD_REQUEST, b"400 bad request\n")
        route = self._routes.get(request.path)
        if route is None:
            return Page(HTTPStatus.NOT_FOUND, b"404 page not found\n")
        if method not in ("GET", "HEAD"):
            allowed = {"Allow": "GET, HEAD"}
            return Page(HTTPStatus.METHOD_NOT_ALLOWED, b"405 use GET\n", headers=allowed)
        try:
            return route(request)
        except Exception as error:  # one page must not take the others along
            self._log(f"{self._name}: {request.path} failed: {type(error).__name__}: {error}")
            return Page(HTTPStatus.INTERNAL_SERVER_ERROR, f"{error}\n".encode())

    def _send(self, peer: socket.socket, page: Page, *, is_head: bool) -> None:
        parts = [page.body] if isinstance(page.body, bytes) else page.body
        deadline = time.monotonic() + self._patience
        with peer:
            try:
                for part in (_head(page, sum(map(len, parts))), *(() if is_head else parts)):
                    peer.settimeout(max(0.001, deadline - time.monotonic()))
                    peer.sendall(part)
                peer.shutdown(socket.SHUT_WR)
            except OSError:
                return  # it did not wait for the answer


def listener(host: str, port: int, *, both_families: bool = False) -> socket.socket:
    """Open a socket that listens; ``OSError`` if the address cannot be had.

    ``both_families`` takes IPv4 on an IPv6 wildcard as well: what Go does with either wildcard, and
    so what kube-proxy's health address means. Without IPv6 it is IPv4 alone.
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


def response(page: Page, *, is_head: bool = False) -> bytes:
    """Give an answer as it is sent."""
    parts: Iterable[bytes] = [page.body] if isinstance(page.body, bytes) else page.body
    body = b"".join(parts)
    return _head(page, len(body)) + (b"" if is_head else body)


def _head(page: Page, length: int) -> bytes:
    headers = {
        "Content-Type": page.type,
        "X-Content-Type-Options": "nosniff",
        **page.headers,
        "Server": "bpfsvc",
        "Date": formatdate(usegmt=True),
        "Content-Length": str(length),
        "Connection": "close",
    }
    status = HTTPStatus(page.status)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read(raw: bytes) -> tuple[str, Request | None]:
    """Take a request apart: its method, and what it asks for if it can be understood."""
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
    return words[0], Request(words[1].partition("?")[0], headers)
