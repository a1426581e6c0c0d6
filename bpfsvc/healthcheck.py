"""Answering load balancers: a listener for each Service that has a ``healthCheckNodePort``.

There may be thousands, and each is asked every few seconds by every balancer, so one thread waits
on all of them. What is asked does not matter: any request gets the same answer, one that fits into
a socket's buffer, and so nothing here ever waits for a single peer.

Which listeners there should be is told from outside and held against those there are. A port that
somebody else occupies is reported once and tried again.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import NamedTuple

from bpfsvc import pages
from bpfsvc.address import endpoint_text, family, unpack
from bpfsvc.cluster import ServiceKey
from bpfsvc.localhealth import Check
from bpfsvc.pages import JSON, Page
from bpfsvc.talks import Talks

_RETRY_SECONDS = 5.0
"""Between two attempts to open what could not be opened."""

_PATIENCE = 10.0
"""Seconds that a peer has to say what it wants."""

_MOST_CONVERSATIONS = 512
_MOST_FILES = 65536


class _Place(NamedTuple):
    """Where a listener stands, and of which Service."""

    service: ServiceKey
    address: bytes
    port: int


class HealthChecks:
    """All listeners of a node. What is told to it takes effect soon, in a thread of its own."""

    def __init__(
        self, is_healthy: Callable[[], bool], complain: Callable[[ServiceKey, str], None]
    ) -> None:
        """``is_healthy`` tells of the proxy itself; ``complain`` is told what cannot be opened."""
        self._is_healthy = is_healthy
        self._complain = complain
        self._lock = threading.Lock()
        self._checks: dict[ServiceKey, dict[int, Check]] = {}
        self._addresses: tuple[bytes, ...] = ()
        self._stopped = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._listeners: dict[_Place, socket.socket] = {}
        self._talks: Talks[_Place] = Talks(
            self._selector, patience=_PATIENCE, most=_MOST_CONVERSATIONS
        )
        self._complaints: dict[_Place, str] = {}
        self._settle_at = 0.0
        self._thread = threading.Thread(target=self._run, name="health checks", daemon=True)

    def start(self) -> None:
        """Serve from now on."""
        _raise_limit_of_files()
        self._thread.start()

    def stop(self) -> None:
        """Close everything and wait for the end. Once only."""
        with self._lock:
            self._stopped = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._close_all()

    def listen_on(self, addresses: Iterable[bytes]) -> None:
        """Say on which addresses to listen, of both families; a wildcard stands for all of its."""
        with self._lock:
            self._addresses = tuple(addresses)
        os.eventfd_write(self._wake, 1)

    def update(self, checks: Iterable[tuple[ServiceKey, Mapping[int, Check]]]) -> None:
        """Say what to answer for Services, by family; those without any are closed."""
        moved = False
        with self._lock:
            for key, by_family in checks:
                moved |= _ports(by_family) != _ports(self._checks.get(key, {}))
                if by_family:
                    self._checks[key] = dict(by_family)
                else:
                    self._checks.pop(key, None)
        if moved:
            os.eventfd_write(self._wake, 1)

    # -- in the thread --

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                    self._settle_at = 0.0
                    continue
                end: socket.socket = key.fileobj  # type: ignore[assignment]
                if isinstance(key.data, _Place):
                    self._talks.accept(end, key.data)
                elif said := self._talks.hear(end):
                    self._answer(end, *said)
            now = time.monotonic()
            if now >= self._settle_at:
                with self._lock:
                    if self._stopped:
                        return
                    wanted = set(self._places())
                self._settle(wanted)
                self._settle_at = now + _RETRY_SECONDS
            self._talks.give_up(now)

    def _places(self) -> Iterable[_Place]:
        for service, by_family in self._checks.items():
            for address in self._addresses:
                check = by_family.get(family(address))
                if check:
                    yield _Place(service, address, check.port)

    def _settle(self, wanted: set[_Place]) -> None:
        """Close listeners before others open: a port may have changed hands."""
        for place in self._listeners.keys() - wanted:
            self._drop(self._listeners.pop(place))
        for place in self._complaints.keys() - wanted:
            del self._complaints[place]
        for place in sorted(wanted - self._listeners.keys()):
            self._open(place)

    def _open(self, place: _Place) -> None:
        try:
            listener = pages.listener(unpack(place.address), place.port)
        except OSError as error:
            text = error.strerror or str(error)
            if self._complaints.get(place) != text:
                self._complaints[place] = text
                where = endpoint_text(place.address, place.port)
                self._complain(
                    place.service,
                    f"cannot serve its healthCheckNodePort at {where}: {text}; trying again",
                )
            return
        self._complaints.pop(place, None)
        self._listeners[place] = listener
        self._selector.register(listener, selectors.EVENT_READ, place)

    def _answer(self, peer: socket.socket, place: _Place, request: bytes) -> None:
        with self._lock:
            by_family = self._checks.get(place.service, {})
        check = by_family.get(family(place.address))
        count = check.local_endpoints if check else 0
        with_body = not request.startswith(b"HEAD ")
        with peer:
            try:
                peer.send(response(place.service, count, self._is_healthy(), with_body=with_body))
                peer.shutdown(socket.SHUT_WR)
            except OSError:
                return  # it did not wait for the answer

    def _drop(self, end: socket.socket) -> None:
        self._selector.unregister(end)
        end.close()

    def _close_all(self) -> None:
        self._talks.close()
        for end in self._listeners.values():
            self._drop(end)
        self._selector.close()
        os.close(self._wake)


def response(service: ServiceKey, count: int, healthy: bool, *, with_body: bool = True) -> bytes:
    """Give the answer for a Service with ``count`` local endpoints, in the words of kube-proxy."""
    namespace, name = service
    well = count > 0 and healthy
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    body = json.dumps(
        {
            "service": {"namespace": namespace, "name": name},
            "localEndpoints": count,
            "serviceProxyHealthy": healthy,
        },
        separators=(",", ":"),
    ).encode()
    page = Page(status, body, JSON, {"X-Load-Balancing-Endpoint-Weight": str(count)})
    return pages.response(page, is_head=not with_body)


def _ports(by_family: Mapping[int, Check]) -> dict[int, int]:
    return {of_family: check.port for of_family, check in by_family.items()}


def _raise_limit_of_files() -> None:
    """Make room for thousands of listeners; many systems begin with 1024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
