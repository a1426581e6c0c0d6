"""The one server of shadow mode, at an address of its own: health, metrics and what was found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus

from bpfsvc.base.texts import SHADOW_PATH
from bpfsvc.http.healthz import OWN_PATHS, Body, Health
from bpfsvc.http.server import JSON, HttpServer, Request, Response, Route

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class ShadowServer:
    """Serves :class:`Health`, the text of ``metrics()`` and the object of ``report()``."""

    def __init__(
        self,
        address: tuple[str, int],
        health: Health,
        metrics: Callable[[], bytes],
        report: Callable[[], Mapping[str, object]],
        log: Callable[[str], None],
    ) -> None:
        """``log`` gets a text when the address is in use; it is tried again until it is free."""
        pages: dict[str, Route] = {
            "/healthz": _health(health.report),
            "/livez": _health(health.livez),
        }
        routes = {OWN_PATHS + path: page for path, page in pages.items()}
        routes |= pages
        routes["/metrics"] = lambda _: Response(HTTPStatus.OK, metrics(), _METRICS)
        routes[SHADOW_PATH] = lambda _: Response(HTTPStatus.OK, json.dumps(report()).encode(), JSON)
        self._server = HttpServer("shadow", address, routes, log, workers=2)

    def start(self) -> None:
        """Serve from now on."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving and free the port."""
        self._server.stop()


def _health(check: Callable[[], tuple[bool, Body]]) -> Route:
    def respond(_: Request) -> Response:
        passed, body = check()
        status = HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status, json.dumps(body).encode(), JSON)

    return respond
