"""One resource, followed for as long as the agent lives: list, watch, watch again, list again.

::

    nothing known ──list or WatchList──▶ version known ──watch──▶ ended ──▶ watch again
          ▲                                    │ 410 Gone
          └────────────────────────────────────┘

A watch that breaks is taken up at the last version, which costs the server nothing; a list is made
only when the server has forgotten that version. Everything that fails waits for a time of chance,
and a list after a forgotten version does too, for it happens to every node at once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

from bpfsvc.apiserver.asking import PAGE, Asking, Group
from bpfsvc.apiserver.connection import Connection
from bpfsvc.apiserver.contacts import Contacts
from bpfsvc.apiserver.objects import Books, Found
from bpfsvc.apiserver.pacing import Pacing
from bpfsvc.apiserver.resources import Query, Resource, Variant
from bpfsvc.apiserver.trouble import (
    FORBIDDEN,
    GONE,
    NOT_FOUND,
    ApiError,
    Garbled,
    Refused,
    Unreachable,
)
from bpfsvc.apiserver.updates import Identity, Update

_log = logging.getLogger("bpfsvc")

_NO_WATCH_LIST = frozenset({400, 405, 422, 500, 501})
"""Codes by which servers without WatchList refuse it."""


class Reflector:
    """Follows one resource in the thread that calls :meth:`run`."""

    def __init__(
        self,
        resource: Resource,
        connection: Connection,
        contacts: Contacts,
        tell: Callable[[Update], None],
        stop: threading.Event,
        pacing: Pacing,
    ) -> None:
        self._resource = resource
        self._name = resource.name
        self._contacts = contacts
        self._tell = tell
        self._stop = stop
        self._pacing = pacing
        self._asking = Asking(
            connection, lambda: contacts.heard(resource.name), stop, pacing.silence_of_lists
        )
        self._backoff = pacing.backoff()
        self._relisting = pacing.backoff()
        self._variant = resource.variants[0]
        self._books = Books(resource.name, self._variant)
        self._was_listed = False
        self._list_from = "0"
        """What a list must be as new as: anything at first, then what was seen last; or exact."""
        self._version = ""
        """Where the next watch goes on; empty when a list is needed."""
        self._look_again_at = 0.0
        self._no_watch_list_until = 0.0
        self._started = time.time()

    def run(self) -> None:
        """Work until ``stop`` is set and :meth:`interrupt` was called."""
        while not self._stop.is_set():
            try:
                seconds = self._round()
            except Exception:
                # A mistake of ours must not leave the node with what it knew at this moment.
                _log.exception("following %s failed; it begins anew", self._name)
                self._contacts.failed(self._name, "a mistake in bpfsvc, see above")
                self._list_anew()
                seconds = self._backoff.next()
            if seconds:
                self._stop.wait(seconds)

    def interrupt(self) -> None:
        """Let :meth:`run` notice that it is to end; from any thread."""
        self._asking.interrupt()

    # -- one round --

    def _round(self) -> float:
        try:
            return self._follow()
        except ApiError as error:
            return self._after(error)

    def _follow(self) -> float:
        """List if nothing is known, then watch; give the seconds to wait before the next watch."""
        if self._version:
            self._look_for_better()
        if self._version:
            return self._watch()
        if time.monotonic() >= self._no_watch_list_until:
            try:
                return self._watch(with_list=True)
            except Refused as error:
                if error.code not in _NO_WATCH_LIST or self._version:
                    raise
            # As far as that server is concerned, this is settled for a while.
            self._no_watch_list_until = time.monotonic() + self._pacing.look_again
        self._list()
        return self._watch()

    def _after(self, error: ApiError) -> float:
        """Decide what comes next; give the seconds to wait."""
        if isinstance(error, Refused):
            if _wants_list(error):
                return self._forget_version(error)
            if error.code == NOT_FOUND and self._take_other_variant():
                return 0.0
            if self._resource.optional and error.code in (NOT_FOUND, FORBIDDEN):
                if error.code == NOT_FOUND:
                    # What was known of them, from a file or a former server, is over.
                    nothing = tuple((kind, frozenset[Identity]()) for kind in self._resource.kinds)
                    self._tell(Update(self._name, whole=nothing))
                self._contacts.absent(self._name, error.message)
                return self._pacing.look_again * random.uniform(0.8, 1.2)
            self._contacts.failed(self._name, _advice(error, self._variant))
            return self._backoff.next(error.retry_after)
        self._contacts.failed(self._name, error.message)
        return self._backoff.next()

    def _forget_version(self, error: Refused) -> float:
        if self._version:
            self._list_anew()
        else:
            self._list_from = ""
        return self._relisting.next(error.retry_after)

    def _list_anew(self) -> None:
        """Let a list be next: as new as what was seen last, out of the server's memory."""
        self._list_from = self._version or self._list_from
        self._version = ""

    # -- variants --

    def _take_other_variant(self) -> bool:
        """Take the next variant, unless this one has been there, or is there after all."""
        if self._was_listed:
            return False
        rest = self._resource.variants[self._resource.variants.index(self._variant) + 1 :]
        if not rest:
            # The first may be there at the next attempt.
            self._take_variant(self._resource.variants[0])
        elif self._asking.offers(self._variant) is False:
            self._look_again_at = time.monotonic() + self._pacing.look_again
            self._take_variant(rest[0])
            return True
        return False

    def _take_variant(self, variant: Variant) -> None:
        if variant is not self._variant:
            self._variant = variant
            self._books = Books(self._name, variant)
        self._version = ""
        self._list_from = "0"
        self._was_listed = False

    def _look_for_better(self) -> None:
        """Ask now and then for the first variant: servers are upgraded under running nodes."""
        if self._variant is self._resource.variants[0] or time.monotonic() < self._look_again_at:
            return
        self._look_again_at = time.monotonic() + self._pacing.look_again
        if self._asking.offers(self._resource.variants[0]) is True:
            self._take_variant(self._resource.variants[0])

    # -- lists --

    def _list(self) -> None:
        """List everything, in pages if the server makes any."""
        pages = self._asking.pages(self._variant, self._list_from, PAGE)
        try:
            update = self._replace(iter(pages))
        except Refused as error:
            if error.code != GONE or not pages.count:
                raise
            # The list grew too old while it was read: once more, in one piece.
            pages = self._asking.pages(self._variant, self._list_from, 0)
            update = self._replace(iter(pages))
        self._finish_list(update, pages.version)

    def _replace(self, found: Found) -> Update:
        others = [kind for kind in self._resource.kinds if kind != self._variant.kind]
        return self._books.replace(found, others)

    def _finish_list(self, update: Update, version: str) -> None:
        self._version = version
        self._list_from = "0"
        self._was_listed = True
        self._contacts.listed(self._name)
        self._tell(update)

    # -- watches --

    def _watch(self, *, with_list: bool = False) -> float:
        """Follow a watch to its end; give the seconds to wait before the next one."""
        seconds = int(random.uniform(*self._pacing.watch_seconds))
        query = self._watch_query(seconds, with_list=with_list)
        silence = self._pacing.silence_of_lists if with_list else self._pacing.silence
        began = time.monotonic()
        with self._asking.answer(self._variant.path, query, silence) as answer:
            try:
                groups = self._asking.events(answer)
                rest = self._take_initial(groups) if with_list else []
                self._contacts.watching(self._name)
                if with_list and not answer.wait_for(self._pacing.silence):
                    return 0.0
                self._take(rest)
                for group in groups:
                    self._take(group)
            except ApiError as error:
                if not self._version or (isinstance(error, Refused) and _wants_list(error)):
                    raise
                _log.debug("the watch of %s broke: %s", self._name, error.message)
                if not isinstance(error, Unreachable) or isinstance(error, Garbled):
                    self._list_anew()
        if time.monotonic() - began >= seconds - 1 or self._stop.is_set():
            return 0.0
        self._contacts.broke(self._name)
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
        """Take everything up to the mark in a WatchList; give the events behind it."""
        rest: Group = []
        version = ""

        def found() -> Found:
            nonlocal version
            some = False
            try:
                for group in groups:
                    for place, event in enumerate(group):
                        if event.ends_initial:
                            version = event.version
                            rest.extend(group[place + 1 :])
                            return
                        if event.type != "BOOKMARK":
                            some = True
                            text = event.text if event.type != "DELETED" else None
                            yield (event.namespace, event.name), text
            except Unreachable as error:
                if not some:
                    raise
                raise _no_mark(error.message) from error
            raise _no_mark("the watch ended") if some else Unreachable("the watch ended")

        self._finish_list(self._replace(found()), version)
        return rest

    def _take(self, group: Group) -> None:
        if not group:
            return
        changes = [event for event in group if event.type != "BOOKMARK"]
        update = self._books.change(changes, self._started) if changes else None
        if update:
            self._tell(update)
        last = group[-1]
        if last.type == "BOOKMARK" and _is_older(last.version, self._version):
            # Its store was restored from a backup: what comes next would seem old for long.
            raise Refused(GONE, "the server has gone back to an older version")
        self._version = last.version or self._version


def _wants_list(error: Refused) -> bool:
    """Tell whether a version was asked for that the server no longer has, or not yet."""
    return error.code == GONE or error.too_large


def _no_mark(why: str) -> Refused:
    """A server that sent objects but never said that it had sent them all knows no WatchList."""
    return Refused(501, f"no end of the initial events: {why}")


def _is_older(version: str, known: str) -> bool:
    return version.isdigit() and known.isdigit() and int(version) < int(known)


def _advice(error: Refused, variant: Variant) -> str:
    if error.code == FORBIDDEN:
        return (
            f"forbidden: the role of bpfsvc needs the verbs list and watch for "
            f"{variant.described} ({error.message})"
        )
    return error.message
