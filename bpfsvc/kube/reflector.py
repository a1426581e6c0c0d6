"""One resource, followed for as long as the agent lives: list, watch, watch again, list again.

::

    nothing known ──list or WatchList──▶ version known ──watch──▶ ended ──▶ watch again
          ▲                                    │ 410 Gone
          └────────────────────────────────────┘

A watch that breaks is resumed at the last version, which costs the server nothing; a list is made
only when the server no longer has that version. Everything that fails waits for a random time, and
so does a list after a lost version, since that happens to every node at once.

A server whose etcd was restored from a backup does not have that version yet. It serves a watch
from there, is silent until it has counted that far, and leaves out what changes meanwhile. So after
a connection was lost, and only then, a list of a single object asks if the server is that far.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

from bpfsvc.kube.client.connection import ApiConnection
from bpfsvc.kube.connection_status import ConnectionStatus
from bpfsvc.kube.deltas import Identity, Update
from bpfsvc.kube.errors import (
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    ApiError,
    InvalidResponse,
    Refused,
    Silence,
    Unreachable,
)
from bpfsvc.kube.object_tracker import Found, ObjectTracker
from bpfsvc.kube.pacing import Pacing
from bpfsvc.kube.requests import PAGE, Group, Requests, is_older, went_back
from bpfsvc.kube.resources import Query, Resource, Variant

_log = logging.getLogger("bpfsvc")

_NO_WATCH_LIST = frozenset({400, 405, 422, 500, 501})
"""Codes by which servers without WatchList refuse it."""


class Reflector:
    """Follows one resource in the thread that calls :meth:`run`."""

    def __init__(
        self,
        resource: Resource,
        connection: ApiConnection,
        status: ConnectionStatus,
        on_update: Callable[[Update], None],
        stop: threading.Event,
        pacing: Pacing,
    ) -> None:
        self._resource = resource
        self._name = resource.name
        self._status = status
        self._on_update = on_update
        self._stop = stop
        self._pacing = pacing
        self._requests = Requests(
            connection, lambda: status.received(resource.name), stop, pacing.list_idle_seconds
        )
        self._backoff = pacing.backoff()
        self._relisting = pacing.backoff()
        self._variant = resource.variants[0]
        self._tracker = ObjectTracker(resource.name, self._variant)
        self._was_listed = False
        self._list_from = "0"
        """A list must be as new as this: ``0`` is any, empty is the newest."""
        self._version = ""
        """The version where the next watch begins; empty when a list is needed."""
        self._was_lost = False
        """A connection was lost, and the server has not been asked for the version since."""
        self._probe_at = 0.0
        self._no_watch_list_until = 0.0
        self._started = time.time()

    def run(self) -> None:
        """Work until ``stop`` is set and :meth:`interrupt` was called."""
        while not self._stop.is_set():
            try:
                seconds = self._round()
            except Exception:
                # A bug must not leave the node with the objects of this moment.
                _log.exception("following %s failed; it starts again with a list", self._name)
                self._status.failed(self._name, "a bug in bpfsvc, see above")
                self._relist()
                seconds = self._backoff.next()
            if seconds:
                self._stop.wait(seconds)

    def interrupt(self) -> None:
        """Make :meth:`run` notice that ``stop`` is set; from any thread."""
        self._requests.interrupt()

    # -- one round --

    def _round(self) -> float:
        try:
            return self._follow()
        except ApiError as error:
            return self._after(error)

    def _follow(self) -> float:
        """List if nothing is known, then watch; return the seconds until the next watch."""
        if self._version:
            self._probe_first_variant()
        if self._version:
            self._require_version()
            return self._watch()
        if time.monotonic() >= self._no_watch_list_until:
            try:
                return self._watch(with_list=True)
            except Refused as error:
                if error.code not in _NO_WATCH_LIST or self._version:
                    raise
            # The server has no WatchList; it is not asked again for a while.
            self._no_watch_list_until = time.monotonic() + self._pacing.probe_seconds
        self._list()
        return self._watch()

    def _after(self, error: ApiError) -> float:
        """Decide what comes next; return the seconds to wait."""
        self._was_lost = True
        if isinstance(error, Refused):
            if _wants_list(error):
                return self._forget_version(error)
            if error.code == NOT_FOUND and self._take_other_variant():
                return 0.0
            # A server that starts forbids for a while what it has allowed before.
            forbidden = error.code == FORBIDDEN and not self._was_listed
            if self._resource.optional and (forbidden or error.code == NOT_FOUND):
                if error.code == NOT_FOUND:
                    # Objects of a snapshot or of another server before are gone.
                    nothing = tuple((kind, frozenset[Identity]()) for kind in self._resource.kinds)
                    self._on_update(Update(self._name, listed=nothing))
                self._status.not_offered(self._name, _advice(error, self._variant))
                return self._pacing.probe_seconds * random.uniform(0.8, 1.2)
            self._status.failed(self._name, _advice(error, self._variant))
            return self._backoff.next(error.retry_after)
        self._status.failed(self._name, error.message)
        return self._backoff.next()

    def _forget_version(self, error: Refused) -> float:
        if self._version and error.too_large:
            self._status.went_back(self._name)
        if self._version and not error.too_large:
            self._relist()
        else:
            self._version = self._list_from = ""
        return self._relisting.next(error.retry_after)

    def _relist(self) -> None:
        """Make a list the next step: as new as what was seen last, out of the server's cache."""
        self._list_from = self._version or self._list_from
        self._version = ""

    def _require_version(self) -> None:
        """Ask if the server has the version of this node, if the connection was lost since."""
        if self._was_lost:
            self._requests.require_version(self._variant, self._version)
            self._was_lost = False

    # -- variants --

    def _take_other_variant(self) -> bool:
        """Take the next variant, unless this one was listed before or the server has it now."""
        if self._was_listed:
            return False
        rest = self._resource.variants[self._resource.variants.index(self._variant) + 1 :]
        if not rest:
            # The server may have the first one at the next attempt.
            self._take_variant(self._resource.variants[0])
        elif self._requests.offers(self._variant) is False:
            self._probe_at = time.monotonic() + self._pacing.probe_seconds
            self._take_variant(rest[0])
            return True
        return False

    def _take_variant(self, variant: Variant) -> None:
        if variant is not self._variant:
            self._variant = variant
            self._tracker = ObjectTracker(self._name, variant)
        self._version = ""
        self._list_from = "0"
        self._was_listed = False

    def _probe_first_variant(self) -> None:
        """Ask now and then for the first variant: servers are upgraded while nodes run."""
        if self._variant is self._resource.variants[0] or time.monotonic() < self._probe_at:
            return
        self._probe_at = time.monotonic() + self._pacing.probe_seconds
        if self._requests.offers(self._resource.variants[0]) is True:
            self._take_variant(self._resource.variants[0])

    # -- lists --

    def _list(self) -> None:
        """List everything, in pages if the server makes any."""
        pages = self._requests.pages(self._variant, self._list_from, PAGE)
        try:
            update = self._replace(iter(pages))
        except Refused as error:
            if error.code != GONE or not pages.count:
                raise
            # The list became too old while it was read: once more, in one piece.
            pages = self._requests.pages(self._variant, self._list_from, 0)
            update = self._replace(iter(pages))
        self._finish_list(update, pages.version)

    def _replace(self, listed: Found) -> Update:
        others = [kind for kind in self._resource.kinds if kind != self._variant.kind]
        return self._tracker.replace(listed, others)

    def _finish_list(self, update: Update, version: str) -> None:
        self._version = version
        self._list_from = "0"
        self._was_listed = True
        self._was_lost = False
        self._status.listed(self._name)
        self._on_update(update)

    # -- watches --

    def _watch(self, *, with_list: bool = False) -> float:
        """Follow a watch to its end; return the seconds to wait before the next one."""
        seconds = int(random.uniform(*self._pacing.watch_seconds))
        query = self._watch_query(seconds, with_list=with_list)
        idle = self._pacing.list_idle_seconds if with_list else self._pacing.idle_seconds
        began = time.monotonic()
        reason = "the server ended it"
        with self._requests.response(self._variant.path, query, idle) as response:
            try:
                groups = self._requests.events(response)
                later = self._take_initial(groups) if with_list else []
                self._status.watching(self._name)
                if with_list and not response.set_timeout(self._pacing.idle_seconds):
                    return 0.0
                self._take(later)
                for group in groups:
                    self._take(group)
            except ApiError as error:
                if not self._version or (isinstance(error, Refused) and _wants_list(error)):
                    raise
                if isinstance(error, Silence):
                    # A server sends bookmarks only for what has changed since its start.
                    _log.debug("the watch of %s was silent: it is opened again", self._name)
                    self._was_lost = True
                    return 0.0
                reason = error.message
                if not isinstance(error, Unreachable) or isinstance(error, InvalidResponse):
                    self._relist()
        if time.monotonic() - began >= seconds - 1 or self._stop.is_set():
            return 0.0
        self._was_lost = True
        self._status.ended_early(self._name, reason)
        return self._backoff.next()

    def _watch_query(self, seconds: int, *, with_list: bool) -> Query:
        query: Query = (
            *self._variant.query,
            ("watch", "1"),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
        )
        if with_list:
            query += (("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan"))
        version = self._list_from if with_list else self._version
        return (*query, ("resourceVersion", version)) if version else query

    def _take_initial(self, groups: Iterator[Group]) -> Group:
        """Read a WatchList up to the mark that ends it; return the events after the mark."""
        rest: Group = []
        version = ""

        def listed() -> Found:
            nonlocal version
            has_objects = False
            try:
                for group in groups:
                    for index, event in enumerate(group):
                        if event.ends_initial:
                            version = event.version
                            rest.extend(group[index + 1 :])
                            return
                        if event.type != "BOOKMARK":
                            has_objects = True
                            text = event.text if event.type != "DELETED" else None
                            yield (event.namespace, event.name), text
            except Unreachable as error:
                if not has_objects:
                    raise
                raise _no_mark(error.message) from error
            raise _no_mark("the watch ended") if has_objects else Unreachable("the watch ended")

        self._finish_list(self._replace(listed()), version)
        return rest

    def _take(self, group: Group) -> None:
        if not group:
            return
        changes = [event for event in group if event.type != "BOOKMARK"]
        update = self._tracker.change(changes, self._started) if changes else None
        if update:
            self._on_update(update)
        version = group[-1].version or self._version
        if is_older(version, self._version):
            raise went_back()
        self._version = version


def _wants_list(error: Refused) -> bool:
    """True if the server no longer has the version it was asked for, or not yet."""
    return error.code == GONE or error.too_large


def _no_mark(why: str) -> Refused:
    """Return the error of a server that sent objects but no mark: it has no WatchList."""
    return Refused(501, f"no end of the initial events: {why}")


def _advice(error: Refused, variant: Variant) -> str:
    if error.code == FORBIDDEN:
        return (
            f"forbidden: the role of bpfsvc needs the verbs list and watch for "
            f"{variant.role_name} ({error.message})"
        )
    return error.message
