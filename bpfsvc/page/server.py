"""Serves the page and its answers, until nobody has asked for a while."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qsl

from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.http.ports import ServerPort
from bpfsvc.http.server import JSON, HttpServer, Request, Response, Route
from bpfsvc.page.admission import HEADERS, admitting
from bpfsvc.page.questions import Answers, Busy, NotHere, Query

_WORKERS = 4

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

ASSETS = {
    "/": "page.html",
    "/page.css": "page.css",
    "/page.js": "page.js",
    "/asking.js": "asking.js",
    "/views.js": "views.js",
    "/elements.js": "elements.js",
    "/icon.svg": "icon.svg",
}

FLEET_ASSETS = {**ASSETS, "/": "fleet.html", "/node": "page.html", "/fleet.js": "fleet.js"}
"""Of the page of all nodes: the page of a node is ``/node?node=NAME``."""


class HandedPort:
    """The listening socket of another process, at the file descriptor ``number``.

    Clients that wait when this process ends are that process's.
    """

    def __init__(self, number: int) -> None:
        self._listener = socket.socket(fileno=number)
        self._listener.setblocking(False)
        host, port, *_ = self._listener.getsockname()
        self.address: tuple[str, int] = (host, port)
        self.port = port

    def open(self) -> tuple[socket.socket, ...]:
        """Return the socket."""
        return (self._listener,)

    def release(self) -> bool:
        """Return True: the clients that wait are the other process's."""
        return True

    def close(self) -> None:
        """Close the socket here; the other process still has it."""
        self._listener.close()


class PageServer:
    """The page of one node, or of all nodes."""

    def __init__(
        self,
        address: tuple[str, int],
        answers: Answers,
        log: Callable[[str], None],
        port: ServerPort | None = None,
        assets: Mapping[str, str] = ASSETS,
    ) -> None:
        """``port``: where to listen; a port bound to the address by default."""
        self._asked_at = time.monotonic()
        host = address[0]
        routes: dict[str, Route] = {
            path: admitting(self._noted(_asset(name)), host, of_page=False)
            for path, name in assets.items()
        }
        for path, answer in answers.items():
            routes[path] = admitting(self._noted(_answering(answer)), host, of_page=True)
        self.http = HttpServer(
            "page", address, routes, log, workers=_WORKERS, hard_fail=True, server_port=port
        )

    def serve(self, parent: int | None, idle_seconds: float) -> None:
        """Serve until ``parent``, a file descriptor, is closed at its other end.

        With ``parent``, also until nobody has asked for ``idle_seconds``. Raises ``UsageError`` if
        the address is taken.
        """
        self.http.start()
        waits = select.poll()
        if parent is not None:
            waits.register(parent, select.POLLIN)
        try:
            while parent is None or time.monotonic() < self._asked_at + idle_seconds:
                if waits.poll(min(1.0, idle_seconds) * 1000):
                    return
        finally:
            self.http.stop()

    def _noted(self, route: Route) -> Route:
        def respond(request: Request) -> Response:
            self._asked_at = time.monotonic()
            return route(request)

        return respond


def _asset(name: str) -> Route:
    body = files("bpfsvc.page").joinpath("assets", name).read_bytes()
    response = Response(HTTPStatus.OK, body, _TYPES[name.rpartition(".")[2]], HEADERS)
    return lambda _: response


def _answering(answer: Callable[[Query], Mapping[str, object]]) -> Route:
    def respond(request: Request) -> Response:
        try:
            return _json(HTTPStatus.OK, answer(dict(parse_qsl(request.query))))
        except UsageError as error:
            status = HTTPStatus.BAD_REQUEST
            text: BpfsvcError = error
        except NotHere as error:
            status, text = HTTPStatus.NOT_FOUND, error
        except Busy as error:
            status, text = HTTPStatus.SERVICE_UNAVAILABLE, error
        except BpfsvcError as error:
            status, text = HTTPStatus.BAD_GATEWAY, error
        return _json(status, {"error": text.message, "hint": text.hint})

    return respond


def _json(status: HTTPStatus, value: Mapping[str, object]) -> Response:
    return Response(status, json.dumps(value).encode(), JSON, HEADERS)
