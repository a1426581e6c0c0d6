"""``/healthz`` and ``/livez``, with the words of kube-proxy's.

200 means: all that the agent knows is in the kernel. 503 means that it is not yet there, or that
the kernel refused some of it, or that programs were taken away.
"""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus

from bpfsvc.errors import UsageError
from bpfsvc.memory import without

with without("ssl"):
    # http.server drags in a client with TLS: 3 MB for nothing.
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Health:
    """What the endpoint answers: healthy once told so, until a problem is told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._problems: dict[str, str] = {"start": "the first synchronisation is not done yet"}
        self._updated = datetime.now(UTC)

    def well(self, about: str) -> None:
        """Note that something is in order (again)."""
        with self._lock:
            self._problems.pop(about, None)
            self._updated = datetime.now(UTC)

    def ill(self, about: str, reason: str) -> None:
        """Note that something is wrong."""
        with self._lock:
            self._problems[about] = reason

    def report(self) -> tuple[bool, dict[str, object]]:
        """Give whether all is well, and the body of the answer."""
        with self._lock:
            problems = dict(self._problems)
            updated = self._updated
        now = datetime.now(UTC)
        body: dict[str, object] = {
            "lastUpdated": (updated if problems else now).isoformat(),
            "currentTime": now.isoformat(),
            "healthy": not problems,
        }
        if problems:
            body["problems"] = problems
        return not problems, body


class HealthServer:
    """Serves :class:`Health` over HTTP in threads of its own."""

    def __init__(self, address: tuple[str, int], health: Health) -> None:
        host, port = address
        report = health.report

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
            daemon_threads = True

            def server_bind(self) -> None:
                # HTTPServer asks DNS for a name that nobody needs, and waits for the answer.
                socketserver.TCPServer.server_bind(self)
                self.server_name, self.server_port = host, port

        try:
            self._server = Server((host, port), _handler(report))
        except OSError as error:
            raise UsageError(
                f"cannot serve health at {host}:{port}: {error.strerror}",
                "choose another --healthz-bind-address",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="healthz", daemon=True
        )

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _handler(
    report: Callable[[], tuple[bool, dict[str, object]]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        server_version = "bpfsvc"

        def do_GET(self) -> None:
            if self.path not in ("/healthz", "/livez"):
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            healthy, body = report()
            data = json.dumps(body).encode()
            self.send_response(HTTPStatus.OK if healthy else HTTPStatus.SERVICE_UNAVAILABLE)
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: probes come every few seconds."""

    return Handler
