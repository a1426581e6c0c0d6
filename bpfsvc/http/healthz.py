"""``/healthz`` and ``/livez``: kube-proxy's responses, and what this agent adds.

``/livez`` fails only when a change has waited too long to be written to the kernel: the loop is
stuck, and a restart may help. It is for liveness probes, which must not restart an agent because a
map is full or the API server is unreachable: no restart fixes that.

``/healthz`` is for load balancers. It fails for the same reason, and before the first sync, while
the kernel refuses some Services, while programs are not attached, and when the node is being
removed.

Probes ask at ``/bpfsvc/livez`` and ``/bpfsvc/healthz``: kube-proxy, which may answer at this port,
has no such paths.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus

from bpfsvc.http.server import JSON, HttpServer, Request, Response, Route
from bpfsvc.http.steered_port import SteeredListeners, SteeredPort

BOTH = (4, 6)
"""Both address families: the agent syncs them together."""

_NEVER = "0001-01-01T00:00:00Z"
"""How Go writes a time that is not set."""

_SECOND = 1_000_000_000

_START = "start"
"""The problem that ends with the first sync."""

OWN_PATHS = "/bpfsvc"
"""The beginning of paths that kube-proxy does not have."""

Body = dict[str, object]


class Health:
    """The state of the agent, and the responses of both pages. For any thread."""

    def __init__(
        self,
        stale_seconds: float = 60.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """A change that has waited for ``stale_seconds`` is a failure; 2 x ``syncPeriod``.

        ``clock()`` returns Unix time in nanoseconds, for the responses' timestamps only.
        """
        self._stale_seconds = stale_seconds
        self._monotonic = monotonic
        self._clock = clock
        self._lock = threading.Lock()
        self._updated: dict[int, int] = {}
        self._waiting: dict[int, deque[float]] = {}
        self._problems: dict[str, str] = {_START: "the first synchronisation is not done yet"}
        self._notes: dict[str, str] = {}
        self._node_eligible: bool | None = None
        self._when_started: list[Callable[[], None]] = []

    # -- written by the agent --

    def queued(self, families: Iterable[int] = BOTH) -> None:
        """Record that a change waits to be written to the kernel; the oldest one counts."""
        with self._lock:
            for family in families:
                self._waiting.setdefault(family, deque()).append(self._monotonic())

    def updated(self, families: Iterable[int] = BOTH, changes: int = 1) -> None:
        """Record that the oldest ``changes`` changes have been handled."""
        with self._lock:
            for family in families:
                waiting = self._waiting.get(family, deque())
                for _ in range(min(changes, len(waiting))):
                    waiting.popleft()
                self._updated[family] = self._clock()

    def clear_problem(self, subject: str) -> None:
        """Remove the problem of a subject, if there is one."""
        with self._lock:
            started = self._problems.pop(subject, None) and subject == _START
            calls = self._when_started if started else []
        for call in calls:
            call()

    def when_started(self, call: Callable[[], None]) -> None:
        """Call ``call()`` after the first sync, in the thread that reports it."""
        with self._lock:
            self._when_started.append(call)

    def set_problem(self, subject: str, reason: str) -> bool:
        """Record a problem: ``/healthz`` fails until it is cleared. Return True if it is new."""
        with self._lock:
            known = self._problems.get(subject) == reason
            self._problems[subject] = reason
        return not known

    def set_note(self, subject: str, text: str | None) -> None:
        """Record a note, which is shown and is no problem; None removes the note."""
        with self._lock:
            self._notes.pop(subject, None)
            if text:
                self._notes[subject] = text

    def set_node_eligible(self, eligible: bool | None) -> None:
        """Record if load balancers may use the node; None: not known, as at the start.

        A node without a known object is not eligible, if the object is expected. A node keeps its
        last state when its object is deleted.
        """
        with self._lock:
            self._node_eligible = eligible

    # -- read by the servers --

    def livez(self) -> tuple[bool, Body]:
        """Return True if the agent's loop works, and the body of the response."""
        with self._lock:
            fresh = self._is_fresh()
            return fresh, self._body(ok=fresh, healthy=fresh)

    def healthz(self) -> tuple[bool, Body]:
        """Return True if traffic should be sent here, and the body of the response."""
        with self._lock:
            healthy = self._is_fresh() and not self._problems
            eligible = self._node_eligible is not False
            body = self._body(ok=healthy and eligible, healthy=healthy)
            body["nodeEligible"] = eligible
            if self._problems:
                body["problems"] = dict(self._problems)
            return healthy and eligible, body

    def oldest_change(self) -> float:
        """Return for how many seconds the oldest change has waited; 0 if none waits."""
        with self._lock:
            oldest = [waiting[0] for waiting in self._waiting.values() if waiting]
            return self._monotonic() - min(oldest) if oldest else 0.0

    def report(self) -> tuple[bool, Body]:
        """Return True if Services work, whether or not the node is eligible, and the body."""
        with self._lock:
            healthy = self._is_fresh() and not self._problems
            return healthy, self._body(ok=healthy, healthy=healthy)

    def _is_fresh(self) -> bool:
        return not any(map(self._is_stale, self._waiting))

    def _is_stale(self, family: int) -> bool:
        """True if a change has waited too long; never before the first sync."""
        if _START in self._problems:
            return False
        waiting = self._waiting.get(family)
        if not waiting:
            return False
        return self._monotonic() - waiting[0] >= self._stale_seconds

    def _body(self, *, ok: bool, healthy: bool) -> Body:
        now = rfc3339(self._clock())
        latest = max(self._updated.values(), default=None)
        body: Body = {
            "lastUpdated": now if ok else rfc3339(latest),
            "currentTime": now,
            "healthy": healthy,
            "status": {
                f"IPv{family}": {
                    "lastUpdated": rfc3339(self._updated.get(family)),
                    "healthy": not self._is_stale(family),
                }
                for family in sorted({*self._updated, *self._waiting})
            },
        }
        if self._notes:
            body["notes"] = dict(self._notes)
        return body


class HealthServer(HttpServer):
    """Serves :class:`Health` at kube-proxy's paths, and at the same paths below ``/bpfsvc``."""

    def __init__(
        self,
        address: tuple[str, int],
        health: Health,
        log: Callable[[str], None] = lambda _: None,
        *,
        answered: Callable[[str, int], None] = lambda _path, _status: None,
        hard_fail: bool = False,
        steered: SteeredListeners | None = None,
    ) -> None:
        """As :class:`HttpServer`; ``answered(path, status)`` is called for every response.

        ``steered``: the kernel steers connections to these; without them, the port is bound.
        """
        port = SteeredPort(steered, *address) if steered else None
        if port:
            health.when_started(port.serve_all_addresses)
        routes = {
            "/healthz": _route("/healthz", health.healthz, answered),
            "/livez": _route("/livez", health.livez, answered),
        }
        super().__init__(
            "healthz",
            address,
            routes | {OWN_PATHS + path: route for path, route in routes.items()},
            log,
            hard_fail=hard_fail,
            server_port=port,
        )


def _route(
    path: str, check: Callable[[], tuple[bool, Body]], answered: Callable[[str, int], None]
) -> Route:
    def respond(_: Request) -> Response:
        passed, body = check()
        status = HTTPStatus.OK if passed else HTTPStatus.SERVICE_UNAVAILABLE
        answered(path, status.value)
        return Response(status, json.dumps(body, separators=(",", ":")).encode(), JSON)

    return respond


def rfc3339(nanoseconds: int | None) -> str:
    """Return a Unix time as Go writes it in JSON: UTC, fractions without trailing zeros."""
    if nanoseconds is None:
        return _NEVER
    seconds, rest = divmod(nanoseconds, _SECOND)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"
