"""Events about this node and its Services, as ``kubectl describe`` and alerts show them.

Where the meaning is kube-proxy's, so are reason and action, the action ``StartKubeProxy`` too:
whoever selects Events by those words goes on to find them, and ``reportingController`` says who
is meant. Objects are referred to as kube-proxy does it, with a name in the place of the uid.

Events are a courtesy. Nothing waits for them: there is a queue of bounded length and a thread of
its own, and what cannot be delivered in a while is dropped. The same event again within six minutes
is no new one, but counts in the series of the first.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from bpfsvc.apiserver.backoff import Backoff
from bpfsvc.apiserver.connection import Connection
from bpfsvc.apiserver.trouble import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    TOO_MANY_REQUESTS,
    ApiError,
    Refused,
)

STARTING = "Starting"
FAILED_HEALTHZ = "FailedToStartProxierHealthcheck"
FAILED_METRICS = "FailedToStartMetricServer"
FAILED_SERVICE_HEALTH = "FailedToStartServiceHealthcheck"
"""Reasons, in kube-proxy's words."""

START, LISTEN = "StartKubeProxy", "Listen"
"""Actions: the first of all reasons but the last."""

CONTROLLER = "bpfsvc"

_log = logging.getLogger("bpfsvc")

_WAITING = 64
"""Events that wait for the server at most."""

_ATTEMPTS = 12
_SERIES_ENDS = 360.0  # seconds without another one
_SERIES_TOLD = 30.0  # seconds between two reports of a count
_LONGEST_NOTE = 1024  # bytes, as the API server checks
_LONGEST_INSTANCE = 128  # characters

Type = Literal["Normal", "Warning"]


class Reference(NamedTuple):
    """What an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str


def node(name: str) -> Reference:
    """Refer to a Node."""
    return Reference("Node", "", name, name)


def service(namespace: str, name: str) -> Reference:
    """Refer to a Service."""
    return Reference("Service", namespace, name, f"{namespace}/{name}")


class _Said(NamedTuple):
    """What makes two events the same, beside the note, of which the first counts."""

    reason: str
    action: str
    type: Type
    regarding: Reference


@dataclass(slots=True)
class _Series:
    """How often something was said; ``told`` is the count the server knows."""

    note: str
    name: str
    first: float
    last: float
    count: int = 1
    told: int = 0
    tell_at: float = 0.0
    until: float = 0.0


class Events:
    """Posts Events in a thread of its own, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        connection: Connection,
        node_name: str,
        *,
        backoff: Callable[[], Backoff] = Backoff,
        series_told: float = _SERIES_TOLD,
        series_ends: float = _SERIES_ENDS,
    ) -> None:
        self._connection = connection
        self._instance = f"{CONTROLLER}-{node_name}"[:_LONGEST_INSTANCE]
        self._backoff = backoff
        self._series_told = series_told
        self._series_ends = series_ends
        self._queue: queue.Queue[tuple[_Said, str, float] | None] = queue.Queue(_WAITING)
        self._series: dict[_Said, _Series] = {}
        self._complaints: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self.dropped = 0
        """Events that were not delivered."""

    def start(self) -> None:
        """Deliver from now on, also what was posted before."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Deliver no more after ``timeout`` seconds; what waits is tried once."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        self._stop.set()

    def post(
        self, reason: str, action: str, note: str, *, regarding: Reference, kind: Type = "Normal"
    ) -> None:
        """Say that something happened; returns at once, whatever becomes of it."""
        short = note.encode()[:_LONGEST_NOTE].decode(errors="ignore")
        try:
            self._queue.put_nowait((_Said(reason, action, kind, regarding), short, time.time()))
        except queue.Full:
            self.dropped += 1

    # -- in the thread --

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(queue.Empty):
                item = self._queue.get(timeout=self._next_report())
                if item is None:
                    self._stop.set()
                else:
                    self._count(*item)
            self._report()

    def _count(self, said: _Said, note: str, moment: float) -> None:
        now = time.monotonic()
        series = self._series.get(said)
        if series is None or now >= series.until:
            name = f"{said.regarding.name}.{time.time_ns():x}"
            self._series[said] = series = _Series(note, name, moment, moment)
        else:
            series.count += 1
            series.last = moment
        series.until = now + self._series_ends

    def _next_report(self) -> float | None:
        """Give the seconds until a count must be told; None if there is none."""
        moments = [each.tell_at for each in self._series.values() if each.told < each.count]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _report(self) -> None:
        now = float("inf") if self._stop.is_set() else time.monotonic()
        for said, series in list(self._series.items()):
            if series.told < series.count and now >= series.tell_at:
                self._deliver(said, series)
                # The first repetition is told at once, further ones now and then.
                series.tell_at = 0.0 if series.told < 2 else now + self._series_told
            elif now >= series.until:
                del self._series[said]

    def _deliver(self, said: _Said, series: _Series) -> None:
        backoff = self._backoff()
        count = series.count
        for _ in range(_ATTEMPTS):
            try:
                self._send(said, series)
            except Refused as error:
                if error.code < 500 and error.code != TOO_MANY_REQUESTS:
                    self._complain(error)
                    break
                self._stop.wait(backoff.next(error.retry_after))
            except ApiError:
                self._stop.wait(backoff.next())
            else:
                series.told = count
                return
            if self._stop.is_set():
                break
        self.dropped += count - series.told
        series.told = count

    def _send(self, said: _Said, series: _Series) -> None:
        namespace = said.regarding.namespace or "default"
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        repeated = {"count": series.count, "lastObservedTime": _time(series.last)}
        if series.told:
            patch = {"series": repeated}
            kind = "application/merge-patch+json"
            try:
                self._connection.send("PATCH", f"{path}/{series.name}", patch, content_type=kind)
            except Refused as error:
                if error.code != NOT_FOUND:
                    raise
            else:
                return
        event: dict[str, object] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": namespace},
            "eventTime": _time(series.first),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": said.action,
            "reason": said.reason,
            "regarding": {"apiVersion": "v1", **said.regarding._asdict()},
            "note": series.note,
            "type": said.type,
        }
        if series.count > 1:
            event["series"] = repeated
        try:
            self._connection.send("POST", path, event, content_type="application/json")
        except Refused as error:
            # An earlier attempt got there, and only its answer was lost.
            if error.code != CONFLICT:
                raise

    def _complain(self, error: Refused) -> None:
        """Say once for each code why events are not taken."""
        if error.code in self._complaints:
            return
        self._complaints.add(error.code)
        advice = (
            "; the role of bpfsvc needs the verbs create and patch for events.events.k8s.io"
            if error.code == FORBIDDEN
            else ""
        )
        _log.warning("Events are not taken: %s%s", error.message, advice)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
