"""Health checks of load balancers: a listener for each Service that has a ``healthCheckNodePort``.

There may be thousands, and every load balancer asks each of them every few seconds, so one thread
waits on all. The path does not matter: every request gets the same response. A response fits into a
socket's buffer, so nothing here waits for a client.

The agent names the ports; the thread opens and closes them. A port that another program uses is
reported once and tried again. kube-proxy's port for the same Service is no such case where
connections can be steered (:mod:`bpfsvc.http.steered_port`); the thread does not wait for the
answer that tells (:mod:`bpfsvc.http.port_owners`).
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

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.address import family as family_of
from bpfsvc.http import server
from bpfsvc.http.health_ports import BoundPorts, SteeredPorts
from bpfsvc.http.port_owners import PortOwners, Question
from bpfsvc.http.ports import ListenerKey
from bpfsvc.http.request_reader import RequestReader
from bpfsvc.http.server import JSON, Response
from bpfsvc.http.steered_port import SteeredListeners
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.rules.view import HealthCheck

_RETRY_SECONDS = 5.0
"""Between two attempts to open a listener."""

_CLIENT_TIMEOUT_SECONDS = 10.0
"""For a client to send its request."""

_MAX_CLIENTS = 512
_MAX_FILES = 65536


class ServiceHealthChecks:
    """All listeners of a node; calls take effect soon after, in a thread of its own."""

    def __init__(
        self,
        is_healthy: Callable[[], bool],
        report_failure: Callable[[ServiceKey, str], None],
        steered: SteeredListeners | None = None,
    ) -> None:
        """Open nothing before :meth:`start`.

        * ``is_healthy()``: True if the agent is healthy.
        * ``report_failure(service, text)``: a port cannot be opened.
        * ``steered``: the kernel steers connections to these; without them, every port is bound.
        """
        self._is_healthy = is_healthy
        self._report_failure = report_failure
        self._lock = threading.Lock()
        self._checks: dict[ServiceKey, dict[int, HealthCheck]] = {}
        self._addresses: tuple[bytes, ...] = ()
        self._stopped = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._owners = PortOwners(self._selector)
        self._ports = (
            SteeredPorts(self._selector, steered, self._owners)
            if steered
            else BoundPorts(self._selector)
        )
        self._open_keys: set[ListenerKey] = set()
        self._reader: RequestReader[ListenerKey] = RequestReader(
            self._selector, timeout_seconds=_CLIENT_TIMEOUT_SECONDS, max_clients=_MAX_CLIENTS
        )
        self._failures: dict[ListenerKey, str] = {}
        self._reconcile_at = 0.0
        self._thread = threading.Thread(target=self._run, name="health checks", daemon=True)

    def start(self) -> None:
        """Serve from now on."""
        _raise_file_limit()
        self._thread.start()

    def stop(self) -> None:
        """Close everything and wait for the thread. Once only."""
        with self._lock:
            self._stopped = True
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._close_all()

    def listen_on(self, addresses: Iterable[bytes]) -> None:
        """Set the addresses to listen on, of both families; a wildcard is all of its family."""
        with self._lock:
            self._addresses = tuple(addresses)
        os.eventfd_write(self._wake, 1)

    def set_checks(self, checks: Iterable[tuple[ServiceKey, Mapping[int, HealthCheck]]]) -> None:
        """Set the health checks of Services, by family; none closes the listeners of a Service."""
        ports_changed = False
        with self._lock:
            for key, by_family in checks:
                ports_changed |= _ports(by_family) != _ports(self._checks.get(key, {}))
                if by_family:
                    self._checks[key] = dict(by_family)
                else:
                    self._checks.pop(key, None)
        if ports_changed:
            os.eventfd_write(self._wake, 1)

    # -- in the thread --

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(timeout=1.0):
                if key.fd == self._wake:
                    os.eventfd_read(self._wake)
                    self._reconcile_at = 0.0
                    continue
                self._handle(key)
            now = time.monotonic()
            if now >= self._reconcile_at:
                with self._lock:
                    stopped = self._stopped
                    wanted = set(self._wanted())
                if stopped:
                    self._finish()
                    return
                self._reconcile(wanted)
                self._reconcile_at = now + _RETRY_SECONDS
            for asked in self._owners.expire(now):
                self._open(asked)
            self._reader.close_expired(now)

    def _handle(self, key: selectors.SelectorKey) -> None:
        if isinstance(key.data, Question):
            if asked := self._owners.handle(key.data):
                self._open(asked)
            return
        ready: socket.socket = key.fileobj  # type: ignore[assignment]
        if key.data is not None:
            self._reader.accept(ready, key.data)
        elif received := self._reader.receive(ready):
            self._respond(ready, *received)

    def _finish(self) -> None:
        """Answer the clients that have connected, if other programs get new clients by now."""
        self._owners.close()
        if self._ports.release():
            self._selector.unregister(self._wake)
            self._reader.finish(self._handle)

    def _wanted(self) -> Iterable[ListenerKey]:
        for service, by_family in self._checks.items():
            for address in self._addresses:
                check = by_family.get(family_of(address))
                if check:
                    yield ListenerKey(service, address, check.port)

    def _reconcile(self, wanted: set[ListenerKey]) -> None:
        """Close listeners before others open: a port may now belong to another Service."""
        for key in self._open_keys - wanted:
            self._ports.close(key)
        self._open_keys &= wanted
        self._owners.keep(wanted)
        for key in self._failures.keys() - wanted:
            del self._failures[key]
        for key in sorted(wanted - self._open_keys):
            self._open(key)

    def _open(self, key: ListenerKey) -> None:
        try:
            if not self._ports.open(key):
                return
        except OSError as error:
            text = error.strerror or str(error)
            if self._failures.get(key) != text:
                self._failures[key] = text
                where = endpoint_text(key.address, key.port)
                self._report_failure(
                    key.service,
                    f"cannot serve its healthCheckNodePort at {where}: {text}; trying again",
                )
            return
        self._failures.pop(key, None)
        self._open_keys.add(key)

    def _respond(self, client: socket.socket, key: ListenerKey, request: bytes) -> None:
        with self._lock:
            by_family = self._checks.get(key.service, {})
        check = by_family.get(family_of(key.address))
        count = check.local_endpoints if check else 0
        with_body = not request.startswith(b"HEAD ")
        with client:
            try:
                client.send(response(key.service, count, self._is_healthy(), with_body=with_body))
                client.shutdown(socket.SHUT_WR)
            except OSError:
                return  # the client did not wait for the response

    def _close_all(self) -> None:
        self._reader.close()
        self._owners.close()
        self._ports.close_all()
        self._selector.close()
        os.close(self._wake)


def response(service: ServiceKey, count: int, healthy: bool, *, with_body: bool = True) -> bytes:
    """Return kube-proxy's response for a Service with ``count`` local endpoints."""
    namespace, name = service
    passed = count > 0 and healthy
    status = HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE
    body = json.dumps(
        {
            "service": {"namespace": namespace, "name": name},
            "localEndpoints": count,
            "serviceProxyHealthy": healthy,
        },
        separators=(",", ":"),
    ).encode()
    headers = {"X-Load-Balancing-Endpoint-Weight": str(count)}
    return server.encode(Response(status, body, JSON, headers), is_head=not with_body)


def _ports(by_family: Mapping[int, HealthCheck]) -> dict[int, int]:
    return {family: check.port for family, check in by_family.items()}


def _raise_file_limit() -> None:
    """Allow thousands of listeners; many systems begin with 1024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
