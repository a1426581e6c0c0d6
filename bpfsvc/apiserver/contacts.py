"""What is known of the contact with the API server, for logs, health and metrics.

An API server that goes away is lost to every resource within moments, and comes back to each at
another time. A person wants one line when it goes and one when all is well again, however many
attempts are in between; so the resources report here, and only here is anything said.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import NamedTuple

from bpfsvc.apiserver.resources import Resource

_log = logging.getLogger("bpfsvc")

_REASONS_TOLD = 5
"""Different reasons in one outage that are worth a line."""


class Contact(NamedTuple):
    """The contact over one resource.

    * ``connected``: what is known is current: a watch is open, or is being opened again.
    * ``since``: when that began, by ``time.monotonic``.
    * ``heard``: when the server last said anything, likewise; 0 if never.
    * ``error``: why the last attempt failed; empty when ``connected``.
    * ``optional``: nothing depends on it; it may be missing for ever.
    * ``lists``, ``watches``, ``errors``: how many there were.
    """

    resource: str
    optional: bool
    connected: bool
    since: float
    heard: float = 0.0
    error: str = ""
    lists: int = 0
    watches: int = 0
    errors: int = 0


class Contacts:
    """The contacts over all resources; any thread may report or ask."""

    def __init__(self, server: str, resources: Iterable[Resource]) -> None:
        now = time.monotonic()
        self._server = server
        self._lock = threading.Lock()
        self._contacts = {
            each.name: Contact(each.name, each.optional, connected=False, since=now)
            for each in resources
        }
        self._told: set[str] = set()
        self._lost_at: float | None = None

    def snapshot(self) -> dict[str, Contact]:
        """Give the contacts as they are now, by the names of their resources."""
        with self._lock:
            return dict(self._contacts)

    def heard(self, name: str) -> None:
        """The server said something."""
        # A thread writes to its own contact only, so nothing is lost between reading and writing.
        self._contacts[name] = self._contacts[name]._replace(heard=time.monotonic())

    def listed(self, name: str) -> None:
        """A list is complete."""
        with self._lock:
            contact = self._contacts[name]
            self._contacts[name] = contact._replace(lists=contact.lists + 1)

    def watching(self, name: str) -> None:
        """A watch is open."""
        now = time.monotonic()
        with self._lock:
            contact = self._contacts[name]
            since = contact.since if contact.connected else now
            self._contacts[name] = contact._replace(
                connected=True, since=since, heard=now, error="", watches=contact.watches + 1
            )
            if self._lost_at is not None and not any(self._troubled()):
                seconds = now - self._lost_at
                self._lost_at = None
                self._told.clear()
                _log.info(
                    "in contact with the API server %s again after %.1f s", self._server, seconds
                )

    def broke(self, name: str) -> None:
        """A watch ended before its time; it may be back in a moment."""
        with self._lock:
            contact = self._contacts[name]
            self._contacts[name] = contact._replace(errors=contact.errors + 1)

    def failed(self, name: str, reason: str) -> None:
        """An attempt failed for a reason that a person may have to know."""
        now = time.monotonic()
        with self._lock:
            contact = self._contacts[name]
            since = now if contact.connected else contact.since
            self._contacts[name] = contact._replace(
                connected=False, since=since, error=reason, errors=contact.errors + 1
            )
            if contact.optional:
                return
            if self._lost_at is None:
                self._lost_at = now
            if reason not in self._told and len(self._told) < _REASONS_TOLD:
                self._told.add(reason)
                _log.warning(
                    "no contact with the API server %s: %s; Services stay as they are, and it is "
                    "tried again until it answers",
                    self._server,
                    reason,
                )

    def absent(self, name: str, reason: str) -> None:
        """The server does not offer an optional resource; said once."""
        with self._lock:
            contact = self._contacts[name]
            is_new = contact.error != reason
            self._contacts[name] = contact._replace(connected=False, error=reason)
        if is_new:
            _log.info("going on without %s: %s", name, reason)

    def _troubled(self) -> Iterable[bool]:
        return (bool(contact.error) and not contact.optional for contact in self._contacts.values())
