"""What another process may order: POST /control/WORD with a JSON object.

========  =======================================================================
fill      ``services``, ``endpoints`` (4), ``namespace``: fill with a crowd
put       ``objects``: create or replace these objects
========  =======================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bpfsvc.devtools.lab.apiserver import crowd
from bpfsvc.devtools.lab.apiserver.server import ApiServer
from bpfsvc.devtools.lab.apiserver.store import decode


class Control:
    """Executes the requests below /control/; the answer to a wrong request has ``error``."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._words: dict[str, Callable[..., Any]] = {"fill": self._fill, "put": self._put}

    def __call__(self, path: str, body: bytes) -> Any:
        """Answer a request: a JSON value."""
        word = path.removeprefix("/control/").strip("/")
        try:
            return self._words[word](**decode(body))
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _fill(self, services: int, endpoints: int = 4, namespace: str = "crowd") -> None:
        crowd.fill(self._server.store, services, endpoints, namespace)

    def _put(self, objects: list[dict[str, Any]]) -> dict[str, float]:
        """Return the moment just before the change (``CLOCK_MONOTONIC``, seconds)."""
        moment = time.monotonic()
        for raw in objects:
            self._server.put(raw)
        return {"monotonic": moment}
