"""What the agent tells people of: a line in the log, and an Event of type Warning.

One cause can concern thousands of objects, on every node. So an Event about an object has one name
on all nodes and comes once, of many objects at a time only the first get one of their own, and one
about the Node says what they have in common.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from bpfsvc.base.address import endpoint_text
from bpfsvc.base.errors import MapFull
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.kube.event_recorder import EventRecorder, Type
from bpfsvc.kube.source import ParseError
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.faults import Fault
from bpfsvc.services.scheduling.quarantine import Change, Step

_AT_ONCE = 10
"""Objects that get an Event of their own, of those that one change concerns."""

_SHOWN = 3
"""Objects that an Event about the Node names."""

FULL, NEARLY_FULL, UNUSABLE = "MapFull", "MapNearlyFull", "UnusableObject"
QUARANTINED, BACK = "EndpointQuarantined", "EndpointBack"
"""Reasons of Events, beside those of faults (:mod:`bpfsvc.services.faults`)."""

_QUARANTINE_EVENTS: dict[Step, tuple[str, Type]] = {
    Step.AWAY: (QUARANTINED, "Warning"),
    Step.BACK: (BACK, "Normal"),
}

_log = logging.getLogger("bpfsvc")


class Reports:
    """Reports for one agent; for any thread."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def faults(self, found: Sequence[Fault]) -> None:
        """Report addresses at which Services are not served, and bad schedulers."""
        for fault in found:
            _log.warning("Service %s/%s: %s", *fault.service, fault.text)
        for fault in found[:_AT_ONCE]:
            self._recorder.object_failed("Service", *fault.service, fault.reason, fault.text)

    def quarantine(self, found: Sequence[Change]) -> None:
        """Report endpoints that are left out because connections to them fail, and their return.

        An Event says when that begins and ends; the log also tells of the trials between.
        """
        for one in found:
            level = logging.INFO if one.step in (Step.TRIAL, Step.BACK) else logging.WARNING
            _log.log(level, "Service %s/%s: %s", *one.service, _quarantine_text(one))
        with_events = [one for one in found if one.step in _QUARANTINE_EVENTS]
        for one in with_events[:_AT_ONCE]:
            reason, kind = _QUARANTINE_EVENTS[one.step]
            self._recorder.service_noted(*one.service, reason, _quarantine_text(one), kind)

    def failed_check(self, service: ServiceKey, text: str) -> None:
        """Report a Service whose health check cannot be served."""
        _log.error("Service %s/%s: %s", *service, text)
        self._recorder.check_failed(*service, text)

    def without_room(self, services: Mapping[ServiceKey, MapFull]) -> None:
        """Report Services that have found no room in a map since the last report."""
        for key, error in services.items():
            _log.error("Service %s/%s is not up to date in the kernel: %s", *key, error)
        for key, error in list(services.items())[:_AT_ONCE]:
            text = f"not up to date in the kernel of a node: {error}"
            self._recorder.object_failed("Service", *key, FULL, text)
        for text in sorted(set(map(str, services.values()))):
            self._recorder.node_failed(FULL, f"Services are not up to date in the kernel: {text}")

    def map_full(self, what: str, error: MapFull) -> None:
        """Report that entries of the node itself could not be written; ``what`` is missing."""
        _log.error("%s: %s", what, error)
        self._recorder.node_failed(FULL, f"{what}: {error}")

    def nearly_full(self, text: str) -> None:
        """Report a map in which new connections will soon find no room."""
        _log.warning("%s", text)
        # The number of entries is another each time: the first text stands for all.
        self._recorder.node_failed(NEARLY_FULL, text, one_series=True)

    def unusable(self, found: Sequence[ParseError]) -> None:
        """Report objects that cannot be used since the last change, already in the log."""
        objects = [error for error in found if error.key]
        for error in objects[:_AT_ONCE]:
            assert error.key
            self._recorder.object_failed(*error.key, UNUSABLE, f"cannot be used: {error.reason}")
        if len(objects) > _AT_ONCE:
            names = list_text([error.file for error in objects], _SHOWN)
            text = f"{count_text(len(objects), 'object')} cannot be used: {names}"
            self._recorder.node_failed(UNUSABLE, text, one_series=True)


def _quarantine_text(one: Change) -> str:
    endpoint, rule = endpoint_text(*one.place), one.rule
    failed = f"{count_text(one.failures, 'attempt')} to connect to endpoint {endpoint} failed"
    away = f"it gets no new connections for {rule.seconds} s"
    return {
        Step.AWAY: f"{failed} within {rule.window} s: {away}",
        Step.AWAY_AGAIN: f"{failed} in its trial: {away}",
        Step.TRIAL: f"endpoint {endpoint} is on trial: the next connection to it decides",
        Step.BACK: f"endpoint {endpoint} is back: a connection to it was established",
    }[one.step]
