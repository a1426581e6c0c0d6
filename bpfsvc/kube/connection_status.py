"""The state of the connections to the API server, for logs, health and metrics.

When an API server goes away, every resource loses its connection within moments, and each resource
gets a new one at another time. A person wants one line at the loss and one line when all resources
are connected again, however many attempts are between. So all resources report here, and only this
module logs.

A fault of one resource, while the others are well, is logged too, because metrics count it: a watch
that broke, when the next watch is open; an optional resource that fails, after some seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bpfsvc.kube.resources import Resource

_log = logging.getLogger("bpfsvc")

_REASONS_LOGGED = 5
"""Different reasons that are logged in one outage."""

_ALONE_SECONDS = 5.0
"""How long an optional resource fails before that is logged: the whole server may be away."""

_AFTER_SECONDS = 60.0
"""After an outage, until an optional resource that is still missing is logged."""

_PAUSE_SECONDS = 600.0
"""Between two lines about one resource."""


class ConnectionState(NamedTuple):
    """The connection of one resource.

    * ``connected``: the objects are current: a watch is open, or is being opened again.
    * ``since``: when ``connected`` last changed, by ``time.monotonic``.
    * ``last_data``: when the server last sent anything, by the same clock; 0 if never.
    * ``error``: why the last attempt failed; empty when ``connected``.
    * ``optional``: nothing depends on it; a server may lack it.
    * ``lists``, ``watches``, ``errors``: how many there were.
    """

    resource: str
    optional: bool
    connected: bool
    since: float
    last_data: float = 0.0
    error: str = ""
    lists: int = 0
    watches: int = 0
    errors: int = 0


@dataclass(slots=True)
class _Trouble:
    """What went wrong with one resource and is not logged yet.

    ``failed``: there were failed attempts, not only watches that broke. ``covered``: the line about
    an outage tells of it. ``silent_until``: the next line about it comes no earlier.
    """

    reason: str = ""
    count: int = 0
    failed: bool = False
    covered: bool = False
    silent_until: float = 0.0

    def forget(self) -> None:
        self.reason, self.count, self.failed, self.covered = "", 0, False, False


class ConnectionStatus:
    """The connections of all resources; any thread may report or ask."""

    def __init__(
        self,
        server: str,
        resources: Iterable[Resource],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        now = clock()
        self._server = server
        self._lock = threading.Lock()
        self._states = {
            resource.name: ConnectionState(
                resource.name, resource.optional, connected=False, since=now
            )
            for resource in resources
        }
        self._troubles = {name: _Trouble() for name in self._states}
        self._logged: set[str] = set()
        self._lost_at: float | None = None
        self._went_back_until = 0.0
        """The next line about a server with older objects comes no earlier."""

    def states(self) -> dict[str, ConnectionState]:
        """Return the states as they are now, by the names of their resources."""
        with self._lock:
            return dict(self._states)

    def received(self, name: str) -> None:
        """Report that the server sent something."""
        # A thread writes to its own state only, so nothing is lost between reading and writing.
        self._states[name] = self._states[name]._replace(last_data=self._clock())

    def listed(self, name: str) -> None:
        """Report a complete list."""
        with self._lock:
            state = self._states[name]
            self._states[name] = state._replace(lists=state.lists + 1)

    def watching(self, name: str) -> None:
        """Report an open watch."""
        now = self._clock()
        with self._lock:
            state = self._states[name]
            since = state.since if state.connected else now
            self._states[name] = state._replace(
                connected=True, since=since, last_data=now, error="", watches=state.watches + 1
            )
            self._log_trouble(name, now)
            if self._lost_at is not None and not any(self._failing()):
                seconds = now - self._lost_at
                self._lost_at = None
                self._logged.clear()
                for trouble in self._troubles.values():
                    if trouble.covered:
                        trouble.forget()
                        trouble.silent_until = now + _AFTER_SECONDS
                _log.info(
                    "connected to the API server %s again after %.1f s", self._server, seconds
                )

    def ended_early(self, name: str, reason: str) -> None:
        """Report a watch that ended early; the next one may work at once."""
        with self._lock:
            state = self._states[name]
            self._states[name] = state._replace(errors=state.errors + 1)
            self._remember(name, reason)

    def failed(self, name: str, reason: str) -> None:
        """Report an attempt that failed; the reason is logged once in an outage."""
        now = self._clock()
        with self._lock:
            state = self._states[name]
            since = now if state.connected else state.since
            self._states[name] = state._replace(
                connected=False, since=since, error=reason, errors=state.errors + 1
            )
            if state.optional:
                self._remember(name, reason).failed = True
                if now - since >= _ALONE_SECONDS:
                    self._log_trouble(name, now)
                return
            if self._lost_at is None:
                self._lost_at = now
                for trouble in self._troubles.values():
                    trouble.covered = trouble.count > 0
            if reason not in self._logged and len(self._logged) < _REASONS_LOGGED:
                self._logged.add(reason)
                _log.warning(
                    "no connection to the API server %s: %s; Services stay as they are, and the "
                    "agent tries again until it answers",
                    self._server,
                    reason,
                )

    def went_back(self, name: str) -> None:
        """Report that the server's objects are older than those that it sent before."""
        now = self._clock()
        with self._lock:
            # Changes were missed: the line about the broken watch would deny that.
            self._troubles[name].forget()
            is_new = now >= self._went_back_until
            self._went_back_until = now + _AFTER_SECONDS
        if is_new:
            _log.warning(
                "the API server %s has older objects than before, as when it was restored from a "
                "backup; this node takes them over",
                self._server,
            )

    def not_offered(self, name: str, reason: str) -> None:
        """Report that the server does not offer an optional resource; logged once."""
        with self._lock:
            state = self._states[name]
            is_new = state.error != reason
            self._states[name] = state._replace(connected=False, error=reason)
        if is_new:
            _log.info("continuing without %s: %s", name, reason)

    def _remember(self, name: str, reason: str) -> _Trouble:
        """Note a fault, unless the line about an outage tells of it. With the lock."""
        trouble = self._troubles[name]
        trouble.covered |= self._lost_at is not None
        trouble.reason = reason
        trouble.count += 1
        return trouble

    def _log_trouble(self, name: str, now: float) -> None:
        """Log the faults of one resource since the last line about it. With the lock."""
        trouble = self._troubles[name]
        if trouble.covered or not trouble.count:
            if self._states[name].connected:
                trouble.forget()
            return
        if now < trouble.silent_until:
            return
        times = "" if trouble.count == 1 else f" {trouble.count} times, at last"
        if trouble.failed:
            _log.warning(
                "no data of %s: %s (failed attempts: %d); the agent works without %s and tries"
                " again",
                name,
                trouble.reason,
                trouble.count,
                name,
            )
        else:
            _log.info(
                "the watch of %s broke%s: %s; it goes on, and no change was missed",
                name,
                times,
                trouble.reason,
            )
        trouble.forget()
        trouble.silent_until = now + _PAUSE_SECONDS

    def _failing(self) -> Iterable[bool]:
        return (bool(state.error) and not state.optional for state in self._states.values())
