"""The server's switches, for other processes: POST /control/WORD with a JSON object.

==========  ===========================================================================
fill        ``services``, ``endpoints`` (4), ``namespace``, ``nodes``: fill with a crowd
put         ``objects``: create or replace these
delete      ``kind``, ``namespace``, ``name``
change      ``service``: move the first endpoint of this Service of the crowd
run         ``rate`` a second, ``seconds``: change Services of the crowd in turn; answers
            at the end, in ms, how ``late`` changes were made, and their ``lag`` until
            the watchers' sockets took them; ``drained``: seconds until all were taken
faults      any attributes of ``Faults``
answer      ``code``, ``times``, ``path``, ``retry_after``: refuse the next requests
away        ``seconds``: refuse connections for so long (answers before)
cut         ``inside``: break all watches
compact     forget history
status      the present state: revision, objects, connections, watches, requests
==========  ===========================================================================

Times are those of ``CLOCK_MONOTONIC`` (the same for all processes of a machine) in seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bpfsvc.devtools.lab.apiserver import resources
from bpfsvc.devtools.lab.apiserver.crowd import Crowd, Sent
from bpfsvc.devtools.lab.apiserver.server import ApiServer
from bpfsvc.devtools.lab.apiserver.store import decode

_SETS = ("absent", "forbidden", "tokens")
_DRAIN = 10.0  # seconds for a watcher to read the rest


class Control:
    """Executes the requests below /control/; the answer to a wrong one has ``error``."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._crowd: Crowd | None = None
        self._words: dict[str, Callable[..., Any]] = {
            "fill": self.fill,
            "put": self._put,
            "delete": self._delete,
            "change": self._change,
            "run": self.run,
            "faults": self._faults,
            "answer": self._server.faults.answer,
            "away": self._away,
            "cut": self._server.cut_watches,
            "compact": self._server.compact,
            "status": self.status,
        }

    def __call__(self, path: str, body: bytes) -> Any:
        """Answer a request: a JSON value."""
        word = path.removeprefix("/control/").strip("/")
        try:
            return self._words[word](**(decode(body) if body else {}))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def fill(
        self,
        services: int,
        endpoints: int = 4,
        namespace: str = "crowd",
        nodes: tuple[str, ...] = ("node-1", "node-2"),
    ) -> dict[str, Any]:
        """Add a crowd to the existing objects."""
        started = time.monotonic()
        crowd = Crowd(
            self._server.store, services, endpoints, namespace=namespace, nodes=tuple(nodes)
        )
        crowd.fill()
        self._crowd = crowd
        return {"seconds": time.monotonic() - started} | self.status()

    def run(self, rate: float, seconds: float) -> dict[str, Any]:
        """Change the crowd at an even rate; return delays and lags."""
        crowd = self._known()
        watches = [
            watch
            for watch in list(self._server.watches)
            if watch.target.resource is resources.ENDPOINT_SLICES
        ]
        for watch in watches:
            watch.lags.clear()
        started = time.monotonic()
        late: list[float] = []
        for number in range(round(rate * seconds)):
            due = started + number / rate
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            late.append(crowd.change(number % crowd.services).monotonic - due)
        lasted = time.monotonic() - started
        deadline = time.monotonic() + _DRAIN
        while any(watch.pending() for watch in watches) and time.monotonic() < deadline:
            time.sleep(0.001)
        return {
            "changes": len(late),
            "seconds": lasted,
            "rate": len(late) / lasted,
            "late": _spread(late),
            "lag": _spread([lag for watch in watches for lag in list(watch.lags)]),
            "drained": time.monotonic() - started - lasted,
            "watched": len(watches),
        } | self.status()

    def status(self) -> dict[str, Any]:
        """Return the state of the server: objects, requests and faults."""
        server = self._server
        return {
            "resourceVersion": server.store.resource_version,
            "monotonic": time.monotonic(),
            "objects": {
                each.plural: len(server.store.all(each.plural)) for each in resources.RESOURCES
            },
            "connections": server.connections,
            "watches": [
                {
                    "resource": watch.target.resource.plural,
                    "sent": watch.sent,
                    "pending": watch.pending(),
                }
                for watch in list(server.watches)
            ],
            "requests": len(server.requests),
        }

    def _put(self, objects: list[dict[str, Any]]) -> dict[str, Any]:
        version = 0
        moment = time.monotonic()
        for each in objects:
            version = self._server.put(each).version
        return {"monotonic": moment, "version": version}

    def _delete(self, kind: str, namespace: str, name: str) -> dict[str, Any]:
        moment = time.monotonic()
        self._server.delete(kind, namespace, name)
        return {"monotonic": moment, "version": self._server.store.version}

    def _change(self, service: int) -> dict[str, Any]:
        crowd = self._known()
        sent: Sent = crowd.change(service)
        return sent._asdict() | {"address": crowd.first(service)}

    def _faults(self, **values: Any) -> None:
        for name, value in values.items():
            if name.startswith("_") or not hasattr(self._server.faults, name):
                raise KeyError(name)
            kept = frozenset(value) if name in _SETS and value is not None else value
            setattr(self._server.faults, name, kept)

    def _away(self, seconds: float) -> None:
        def act() -> None:
            self._server.go_away()
            timer = threading.Timer(seconds, self._server.come_back)
            timer.daemon = True
            timer.start()

        # After the answer, which could not be sent otherwise.
        threading.Timer(0.05, act).start()

    def _known(self) -> Crowd:
        if self._crowd is None:
            raise KeyError("no crowd: fill first")
        return self._crowd


def _spread(values: list[float]) -> dict[str, float]:
    """Return median, 99th percentile and maximum in milliseconds."""
    if not values:
        return {}
    ordered = sorted(values)

    def at(part: float) -> float:
        return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    return {"p50": at(0.5), "p99": at(0.99), "max": 1000 * ordered[-1]}
