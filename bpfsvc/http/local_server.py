"""Answers to the commands of this node, by HTTP at a socket that only root can use.

It is a server of its own, so no probe waits for a long answer. An answer about a Pod waits for the
API server; so several threads answer, and a question about a Service does not wait as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.local_socket import address_of, is_trusted
from bpfsvc.http.ports import LocalAddress
from bpfsvc.http.server import JSON, RETRY_SECONDS, HttpServer, Request, Response, Route

_WORKERS = 4

Answer = Callable[[str, str], bytes | None]
"""Returns JSON about the object of a namespace and a name, None if there is no such object."""


class LocalServer(HttpServer):
    """Answers by path, with ``namespace`` and ``name`` as the query.

    It starts to answer at once, or as soon as the agent that is being replaced has ended.
    """

    def __init__(
        self,
        pin_root: Path,
        answers: Mapping[str, Answer],
        log: Callable[[str], None],
        routes: Mapping[str, Route] = {},
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """As :class:`HttpServer`. ``routes``: by path, of what is not about one object."""
        address = address_of(pin_root)
        super().__init__(
            "explain",
            (f"@{address[1:].decode()}", 0),
            {path: partial(_respond, answer) for path, answer in answers.items()} | {**routes},
            log,
            workers=_WORKERS,
            retry_seconds=retry_seconds,
            server_port=LocalAddress(address),
            admits=is_trusted,
        )


def _respond(answer: Answer, request: Request) -> Response:
    query = parse_qs(request.query)
    namespace, name = (query.get(field, [""])[0] for field in ("namespace", "name"))
    try:
        body = answer(namespace, name)
    except BpfsvcError as error:
        return failure(HTTPStatus.BAD_GATEWAY, error.message)
    if body is None:
        return failure(HTTPStatus.NOT_FOUND, f"there is no {namespace}/{name}")
    return Response(HTTPStatus.OK, body, JSON)


def failure(status: HTTPStatus, text: str) -> Response:
    """Return the response that a question cannot be answered, and why."""
    return Response(status, json.dumps({"error": text}).encode(), JSON)
