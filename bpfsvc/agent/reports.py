"""What the agent tells people: a line in the log, an Event, and a problem on the health page.

One cause can concern thousands of objects, on every node. So an Event about an object has the same
name on all nodes and comes once. Of many objects at a time only the first get Events of their own;
an Event about the Node says what all of them have in common.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.errors import MapFull
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.http.healthz import Health
from bpfsvc.kube.event_recorder import EventRecorder, Type
from bpfsvc.kube.source import ParseError
from bpfsvc.model.answers import AgentState
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.faults import Fault
from bpfsvc.services.scheduling.quarantine import Change, Step

_AT_ONCE = 10
"""Objects that get an Event of their own, when a change concerns more."""

_SHOWN = 3
"""Objects that an Event about the Node names."""

FULL, NEARLY_FULL, UNUSABLE = "MapFull", "MapNearlyFull", "UnusableObject"
QUARANTINED, BACK = "EndpointQuarantined", "EndpointBack"
"""Reasons of Events, beside the reasons of faults (:mod:`bpfsvc.services.faults`)."""

_QUARANTINE_EVENTS: dict[Step, tuple[str, Type]] = {
    Step.AWAY: (QUARANTINED, "Warning"),
    Step.BACK: (BACK, "Normal"),
}

_log = logging.getLogger("bpfsvc")


class Reports:
    """Reports for one agent; for any thread."""

    def __init__(self, recorder: EventRecorder, health: Health) -> None:
        self._recorder = recorder
        self._health = health
        self._refused: dict[ServiceKey, str] = {}
        self._repaired = 0

    def state(self) -> AgentState:
        """Return how far the agent is."""
        return AgentState(lag_seconds=self._health.oldest_change(), repaired=self._repaired)

    def repaired(self, entries: int) -> None:
        """Report entries that another program had changed."""
        self._repaired += entries
        number = count_text(entries, "entry", "entries")
        _log.warning("repaired %s that another program changed in the kernel", number)

    def set_problem(self, subject: str, reason: str) -> None:
        """Show a problem of a subject on the health page, which then fails; "" for none."""
        if reason:
            self._health.set_problem(subject, reason)
        else:
            self._health.clear_problem(subject)

    def clear_problem(self, subject: str) -> None:
        """Remove the problem of a subject from the health page, if there is one."""
        self._health.clear_problem(subject)

    def note(self, subject: str, text: str | None) -> None:
        """Show a note on the health page, which is no problem; None removes it."""
        self._health.set_note(subject, text)

    def faults(self, new: Sequence[Fault], notes: Mapping[str, str]) -> None:
        """Report new faults of Services; ``notes`` are all that remain, by subject ("" if none)."""
        for fault in new:
            _log_service(logging.WARNING, fault.service, f": {fault.text}")
        for fault in new[:_AT_ONCE]:
            self._recorder.object_failed("Service", *fault.service, fault.reason, fault.text)
        for subject, text in notes.items():
            self._health.set_note(subject, text)

    def quarantine(self, changes: Sequence[Change]) -> None:
        """Report endpoints that are ejected because connections to them fail, and their return.

        Events say when that begins and ends; the log also has the probes between.
        """
        for change in changes:
            level = logging.INFO if change.step in (Step.TRIAL, Step.BACK) else logging.WARNING
            _log_service(level, change.service, f": {_quarantine_text(change)}")
        with_events = [change for change in changes if change.step in _QUARANTINE_EVENTS]
        for change in with_events[:_AT_ONCE]:
            reason, kind = _QUARANTINE_EVENTS[change.step]
            self._recorder.service_noted(*change.service, reason, _quarantine_text(change), kind)

    def failed_check(self, service: ServiceKey, text: str) -> None:
        """Report that the health check of a Service cannot be served."""
        _log_service(logging.ERROR, service, f": {text}")
        self._recorder.check_failed(*service, text)

    def without_room(self, services: Mapping[ServiceKey, MapFull]) -> None:
        """Report all Services that find no room in a map; each reason of a Service once."""
        refused = {key: str(error) for key, error in services.items()}
        new = [key for key, reason in refused.items() if self._refused.get(key) != reason]
        self._refused = refused
        for key in new:
            _log_service(logging.ERROR, key, f" is not up to date in the kernel: {refused[key]}")
        for key in new[:_AT_ONCE]:
            text = f"not up to date in the kernel of a node: {refused[key]}"
            self._recorder.object_failed("Service", *key, FULL, text)
        for reason in sorted({refused[key] for key in new}):
            self._recorder.node_failed(FULL, f"Services are not up to date in the kernel: {reason}")
        if not refused:
            self._health.clear_problem("maps")
            return
        number, reason = len(refused), next(iter(refused.values()))
        are = f"{count_text(number, 'Service')} {'is' if number == 1 else 'are'}"
        self._health.set_problem("maps", f"{are} not up to date: {reason}")

    def map_full(self, subject: str, missing: str, error: MapFull) -> None:
        """Report that entries could not be written, if that is no known problem of ``subject``."""
        if self._health.set_problem(subject, str(error)):
            _log.error("%s: %s", missing, error)
            self._recorder.node_failed(FULL, f"{missing}: {error}")

    def nearly_full(self, text: str) -> None:
        """Report a map in which new connections will soon find no room."""
        _log.warning("%s", text)
        # The number of entries changes each time: the first text stands for all.
        self._recorder.node_failed(NEARLY_FULL, text, one_series=True)

    def unusable(self, errors: Sequence[ParseError]) -> None:
        """Report objects that cannot be used since the last change; the log has them already."""
        objects = [error for error in errors if error.key]
        for error in objects[:_AT_ONCE]:
            assert error.key
            self._recorder.object_failed(*error.key, UNUSABLE, f"cannot be used: {error.reason}")
        if len(objects) > _AT_ONCE:
            names = list_text([error.file for error in objects], _SHOWN)
            text = f"{count_text(len(objects), 'object')} cannot be used: {names}"
            self._recorder.node_failed(UNUSABLE, text, one_series=True)


def _log_service(level: int, service: ServiceKey, text: str) -> None:
    """Log a line about a Service; ``text`` follows its name."""
    name = "/".join(service)
    _log.log(level, "Service %s%s", name, text, extra={"service": name})


def _quarantine_text(change: Change) -> str:
    endpoint, rule = endpoint_text(*change.endpoint), change.rule
    failed = f"{count_text(change.failures, 'attempt')} to connect to endpoint {endpoint} failed"
    away = f"it gets no new connections for {rule.seconds} s"
    return {
        Step.AWAY: f"{failed} within {rule.window} s: {away}",
        Step.AWAY_AGAIN: f"{failed} in its trial: {away}",
        Step.TRIAL: f"endpoint {endpoint} is on trial: the next connection to it decides",
        Step.BACK: f"endpoint {endpoint} is back: a connection to it was established",
    }[change.step]
