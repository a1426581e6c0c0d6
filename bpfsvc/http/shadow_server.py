"""The one server of shadow mode, at an address of its own: health, metrics and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus

from bpfsvc.base.texts import SHADOW_PATH
from bpfsvc.http.healthz import OWN_PATHS, Health
from bpfsvc.http.server import JSON, HttpServer, Response

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


def shadow_server(
    address: tuple[str, int],
    health: Health,
    metrics: Callable[[], bytes],
    report: Callable[[], Mapping[str, object]],
    log: Callable[[str], None],
) -> HttpServer:
    """Return a server of :class:`Health`, the text of ``metrics()`` and the object of ``report()``.

    ``log`` gets a text when the address is in use; the server tries again until it is free.
    """

    def page(body: Mapping[str, object], status: int = HTTPStatus.OK) -> Response:
        return Response(status, json.dumps(body).encode(), JSON)

    def health_page(check: Callable[[], tuple[bool, Mapping[str, object]]]) -> Response:
        passed, body = check()
        return page(body, HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE)

    routes = {
        "/metrics": lambda _: Response(HTTPStatus.OK, metrics(), _METRICS),
        SHADOW_PATH: lambda _: page(report()),
    }
    for prefix in ("", OWN_PATHS):
        routes[f"{prefix}/healthz"] = lambda _: health_page(health.report)
        routes[f"{prefix}/livez"] = lambda _: health_page(health.livez)
    return HttpServer("shadow", address, routes, log, workers=2)
