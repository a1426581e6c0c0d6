"""Events about this node and its Services, as ``kubectl describe`` and alerts show them.

An Event that kube-proxy has, too, has kube-proxy's reason and action, even ``StartKubeProxy``: a
client that selects Events by those words still finds them. ``reportingController`` names bpfsvc.
Events refer to objects as kube-proxy does it, with a name in the place of the uid.

Nothing waits for an Event. A queue of bounded length holds Events, a thread posts them, and an
Event that cannot be delivered in a while is dropped. The same Event again within six minutes is no
new Event; it counts in the series of the first.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, NamedTuple

from bpfsvc.kube.errors import CONFLICT, FORBIDDEN, NOT_FOUND, TOO_MANY_REQUESTS, ApiError, Refused
from bpfsvc.kube.pacing import Backoff

if TYPE_CHECKING:
    # An agent that reads manifests does without this module's 20 MB.
    from bpfsvc.kube.client.connection import ApiConnection

STARTING = "Starting"
FAILED_HEALTHZ = "FailedToStartProxierHealthcheck"
FAILED_METRICS = "FailedToStartMetricServer"
FAILED_SERVICE_HEALTH = "FailedToStartServiceHealthcheck"
"""Reasons, in kube-proxy's words."""

START, LISTEN, SERVE = "StartKubeProxy", "Listen", "Serve"
"""Actions: of the agent's start; of a health check; of all else, which is bpfsvc's own."""

CONTROLLER = "bpfsvc"

_log = logging.getLogger("bpfsvc")

_FAILED = {"healthz": FAILED_HEALTHZ, "metrics": FAILED_METRICS}

_QUEUE_LENGTH = 64
"""Events that wait for the server at most."""

_ATTEMPTS = 12
_SERIES_ENDS = 360.0  # seconds without another one
_SERIES_REPORTED = 30.0  # seconds between two reports of a count
_LONGEST_NOTE = 1024  # bytes, as the API server checks
_LONGEST_INSTANCE = 128  # characters
_LONGEST_NAME = 253  # characters
_DIGEST = 16  # characters, as long as a time

_API_VERSIONS = {
    "EndpointSlice": "discovery.k8s.io/v1",
    "ServiceCIDR": "networking.k8s.io/v1",
}
"""Of objects that are not of the core group."""

Type = Literal["Normal", "Warning"]


class Reference(NamedTuple):
    """What an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str


def node(name: str) -> Reference:
    """Return the reference to a Node."""
    return Reference("Node", "", name, name)


def service(namespace: str, name: str) -> Reference:
    """Return the reference to a Service."""
    return Reference("Service", namespace, name, f"{namespace}/{name}")


class EventRecorder:
    """What the agent reports to the cluster. No method waits or raises. These do nothing."""

    def started(self) -> None:
        """Report that the agent has been started."""

    def server_failed(self, name: str, reason: str) -> None:
        """Report that a server (``healthz``, ``metrics``) cannot listen, and the agent ends."""

    def check_failed(self, namespace: str, name: str, reason: str) -> None:
        """Report that the health check of a Service cannot be served."""

    def object_failed(self, kind: str, namespace: str, name: str, reason: str, note: str) -> None:
        """Report something about an object that all nodes report in the same words."""

    def service_noted(self, namespace: str, name: str, reason: str, note: str, kind: Type) -> None:
        """Report something that this node has found out about a Service."""

    def node_failed(self, reason: str, note: str, *, one_series: bool = False) -> None:
        """Report something about this Node; ``one_series``: whatever the note, it is the same."""

    def stop(self) -> None:
        """Report no more."""


class NullEventRecorder(EventRecorder):
    """A recorder that posts nowhere, for an agent without an API server."""


class _EventKey(NamedTuple):
    """What makes two events the same. The note is no part of it; the first note counts.

    ``subject`` tells apart events that are equal in all other fields.
    """

    reason: str
    action: str
    type: Type
    regarding: Reference
    name: str
    subject: str


@dataclass(slots=True)
class _Series:
    """How often an event happened; ``reported`` is the count that the server has.

    ``first`` and ``last`` are Unix times; ``report_at`` and ``until`` are of ``time.monotonic``.
    """

    note: str
    name: str
    first: float
    last: float
    count: int = 1
    reported: int = 0
    report_at: float = 0.0
    until: float = 0.0


class ApiEventRecorder(EventRecorder):
    """Posts Events to the API server in a thread, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self,
        connection: ApiConnection,
        node_name: str,
        *,
        backoff: Callable[[], Backoff] = Backoff,
        series_reported: float = _SERIES_REPORTED,
        series_ends: float = _SERIES_ENDS,
    ) -> None:
        self._connection = connection
        self._node = node(node_name)
        self._instance = f"{CONTROLLER}-{node_name}"[:_LONGEST_INSTANCE]
        self._backoff = backoff
        self._series_reported = series_reported
        self._series_ends = series_ends
        self._queue: queue.Queue[tuple[_EventKey, str, float] | None] = queue.Queue(_QUEUE_LENGTH)
        self._series: dict[_EventKey, _Series] = {}
        self._logged_codes: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self.dropped = 0
        """Events that were not delivered."""

    def started(self) -> None:
        """Post ``Starting`` about the Node."""
        self.post(STARTING, START, "", regarding=self._node)

    def server_failed(self, name: str, reason: str) -> None:
        """Post about the Node that a server cannot listen."""
        self.post(_FAILED[name], START, reason, regarding=self._node, kind="Warning")

    def check_failed(self, namespace: str, name: str, reason: str) -> None:
        """Post about the Service that its health check cannot be served."""
        about = service(namespace, name)
        self.post(FAILED_SERVICE_HEALTH, LISTEN, reason, regarding=about, kind="Warning")

    def object_failed(self, kind: str, namespace: str, name: str, reason: str, note: str) -> None:
        """Post about an object, under one name for all nodes: the first Event stays alone."""
        about = Reference(kind, namespace, name, f"{namespace}/{name}" if namespace else name)
        text = f"{kind} {name} {reason} {note}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
        own = f"{name[: _LONGEST_NAME - _DIGEST - 1].rstrip('.-')}.{digest}"
        self.post(reason, SERVE, note, regarding=about, kind="Warning", name=own)

    def service_noted(self, namespace: str, name: str, reason: str, note: str, kind: Type) -> None:
        """Post about the Service; the same note soon after counts in the series of the first."""
        about = service(namespace, name)
        self.post(reason, SERVE, note, regarding=about, kind=kind, subject=note)

    def node_failed(self, reason: str, note: str, *, one_series: bool = False) -> None:
        """Post about the Node; the same note soon after counts in the series of the first."""
        subject = "" if one_series else note
        self.post(reason, SERVE, note, regarding=self._node, kind="Warning", subject=subject)

    def start(self) -> None:
        """Deliver from now on, also what was posted before."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Deliver no more after ``timeout`` seconds; waiting Events are sent once, not retried."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        self._stop.set()

    def post(
        self,
        reason: str,
        action: str,
        note: str,
        *,
        regarding: Reference,
        kind: Type = "Normal",
        name: str = "",
        subject: str = "",
    ) -> None:
        """Queue an event and return at once; it is dropped if the queue is full.

        ``name``: the name of the Event; without it, each Event gets a name of its own. Events that
        differ in ``subject`` are different Events.
        """
        short = note.encode()[:_LONGEST_NOTE].decode(errors="ignore")
        key = _EventKey(reason, action, kind, regarding, name, subject)
        try:
            self._queue.put_nowait((key, short, time.time()))
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

    def _count(self, key: _EventKey, note: str, moment: float) -> None:
        now = time.monotonic()
        series = self._series.get(key)
        if series is None or now >= series.until:
            name = key.name or f"{key.regarding.name}.{time.time_ns():x}"
            self._series[key] = series = _Series(note, name, moment, moment)
        else:
            series.count += 1
            series.last = moment
        series.until = now + self._series_ends

    def _next_report(self) -> float | None:
        """Return the seconds until a count must be reported; ``None`` if there is none."""
        moments = [
            series.report_at for series in self._series.values() if series.reported < series.count
        ]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _report(self) -> None:
        now = float("inf") if self._stop.is_set() else time.monotonic()
        for key, series in list(self._series.items()):
            if series.reported < series.count and now >= series.report_at:
                self._deliver(key, series)
                # The first repetition is reported at once, further ones now and then.
                series.report_at = 0.0 if series.reported < 2 else now + self._series_reported
            elif now >= series.until:
                del self._series[key]

    def _deliver(self, key: _EventKey, series: _Series) -> None:
        backoff = self._backoff()
        count = series.count
        for _ in range(_ATTEMPTS):
            try:
                self._send(key, series)
            except Refused as error:
                if error.code < 500 and error.code != TOO_MANY_REQUESTS:
                    self._log_refusal(error)
                    break
                self._stop.wait(backoff.next(error.retry_after))
            except ApiError:
                self._stop.wait(backoff.next())
            else:
                series.reported = count
                return
            if self._stop.is_set():
                break
        self.dropped += count - series.reported
        series.reported = count

    def _send(self, key: _EventKey, series: _Series) -> None:
        namespace = key.regarding.namespace or "default"
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        repeated = {"count": series.count, "lastObservedTime": _time(series.last)}
        if series.reported:
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
            "action": key.action,
            "reason": key.reason,
            "regarding": {
                "apiVersion": _API_VERSIONS.get(key.regarding.kind, "v1"),
                **key.regarding._asdict(),
            },
            "note": series.note,
            "type": key.type,
        }
        if series.count > 1:
            event["series"] = repeated
        try:
            self._connection.send("POST", path, event, content_type="application/json")
        except Refused as error:
            # An earlier attempt succeeded, and only its answer was lost.
            if error.code != CONFLICT:
                raise

    def _log_refusal(self, error: Refused) -> None:
        """Log once for each code why events are refused."""
        if error.code in self._logged_codes:
            return
        self._logged_codes.add(error.code)
        advice = (
            "; the role of bpfsvc needs the verbs create and patch for events.events.k8s.io"
            if error.code == FORBIDDEN
            else ""
        )
        _log.warning("the API server refuses Events: %s%s", error.message, advice)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
