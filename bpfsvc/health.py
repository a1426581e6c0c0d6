"""``/healthz`` and ``/livez``: kube-proxy's answers, and what this agent knows besides.

``/livez`` fails only when a change has waited too long to be brought into the kernel: the loop is
stuck, and a restart may mend that. A probe of liveness asks here, and must not restart an agent
because a map is full or the control plane is away, which no restart mends.

``/healthz`` is for those who decide whether to send traffic: it fails for the same reason, before
everything was brought in for the first time, while the kernel refuses some of it or programs were
taken away, and when the node is about to go.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus

from bpfsvc.pages import JSON, Page, Pages, Request, Route

BOTH = (4, 6)
"""Both families: this agent serves them together."""

_NEVER = "0001-01-01T00:00:00Z"
"""How Go writes the time of what has not happened."""

_SECOND = 1_000_000_000

Body = dict[str, object]


class Health:
    """What the agent tells of itself, and the answers that follow. For any thread."""

    def __init__(
        self,
        stale_seconds: float = 60.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """``stale_seconds``: from then on a change that waits is a failure; 2 x ``syncPeriod``.

        ``clock()`` is the time of day in nanoseconds of Unix time, only for show.
        """
        self._stale_seconds = stale_seconds
        self._monotonic = monotonic
        self._clock = clock
        self._lock = threading.Lock()
        self._updated: dict[int, int] = {}
        self._waiting: dict[int, deque[float]] = {}
        self._problems: dict[str, str] = {"start": "the first synchronisation is not done yet"}
        self._notes: dict[str, str] = {}
        self._eligible: bool | None = None

    # -- told --

    def queued(self, families: Iterable[int] = BOTH) -> None:
        """Note that a change waits to be brought into the kernel; the oldest one counts."""
        with self._lock:
            for family in families:
                self._waiting.setdefault(family, deque()).append(self._monotonic())

    def updated(self, families: Iterable[int] = BOTH, changes: int = 1) -> None:
        """Note that as many changes, the oldest of all, do not wait any more."""
        with self._lock:
            for family in families:
                waiting = self._waiting.get(family, deque())
                for _ in range(min(changes, len(waiting))):
                    waiting.popleft()
                self._updated[family] = self._clock()

    def well(self, about: str) -> None:
        """Note that something is in order (again)."""
        with self._lock:
            self._problems.pop(about, None)

    def ill(self, about: str, reason: str) -> None:
        """Note that something is wrong."""
        with self._lock:
            self._problems[about] = reason

    def note(self, about: str, text: str | None) -> None:
        """Note something worth knowing that is no problem; None takes it back."""
        with self._lock:
            self._notes.pop(about, None)
            if text:
                self._notes[about] = text

    def node(self, eligible: bool | None) -> None:
        """Say whether load balancers may use the node; None, as at the start: nobody can know.

        A node whose object is expected but not known is not eligible. One that is deleted stays
        what it was.
        """
        with self._lock:
            self._eligible = eligible

    # -- asked --

    def livez(self) -> tuple[bool, Body]:
        """Give whether the loop works, and the body of the answer."""
        with self._lock:
            fresh = self._is_fresh()
            return fresh, self._body(ok=fresh, healthy=fresh)

    def healthz(self) -> tuple[bool, Body]:
        """Give whether traffic should be sent here, and the body of the answer."""
        with self._lock:
            healthy = self._is_fresh() and not self._problems
            eligible = self._eligible is not False
            body = self._body(ok=healthy and eligible, healthy=healthy)
            body["nodeEligible"] = eligible
            if self._problems:
                body["problems"] = dict(self._problems)
            return healthy and eligible, body

    def report(self) -> tuple[bool, Body]:
        """Give whether Services are served as they should be, whatever becomes of the node."""
        with self._lock:
            healthy = self._is_fresh() and not self._problems
            return healthy, self._body(ok=healthy, healthy=healthy)

    def _is_fresh(self) -> bool:
        return not any(map(self._is_stale, self._waiting))

    def _is_stale(self, family: int) -> bool:
        """Whether a change has waited too long; at the start, none can be helped by a restart."""
        if "start" in self._problems:
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


class HealthServer:
    """Serves :class:`Health` at kube-proxy's paths."""

    def __init__(
        self,
        address: tuple[str, int],
        health: Health,
        log: Callable[[str], None] = lambda _: None,
        *,
        answered: Callable[[str, int], None] = lambda _path, _status: None,
        hard_fail: bool = False,
    ) -> None:
        """``answered(path, status)`` is told every answer; for the rest see :class:`Pages`."""
        self._pages = Pages(
            "healthz",
            address,
            {
                "/healthz": _route(health.healthz, answered),
                "/livez": _route(health.livez, answered),
            },
            log,
            hard_fail=hard_fail,
        )

    @property
    def port(self) -> int:
        """The port that is listened on; 0 while there is none."""
        return self._pages.port

    def start(self) -> None:
        """Answer from now on; ``UsageError`` if ``hard_fail`` and the address cannot be had."""
        self._pages.start()

    def stop(self) -> None:
        """Stop answering and free the port."""
        self._pages.stop()


def _route(ask: Callable[[], tuple[bool, Body]], answered: Callable[[str, int], None]) -> Route:
    def answer(request: Request) -> Page:
        well, body = ask()
        status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
        answered(request.path, status.value)
        return Page(status, json.dumps(body, separators=(",", ":")).encode(), JSON)

    return answer


def rfc3339(nanoseconds: int | None) -> str:
    """Give Unix time as Go prints it in JSON: UTC, fractions without trailing zeros."""
    if nanoseconds is None:
        return _NEVER
    seconds, rest = divmod(nanoseconds, _SECOND)
    fraction = f".{rest:09d}".rstrip("0").rstrip(".")
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"
