"""One open watch: its events, their order, and its end.

As "API concepts" describes: from a ``resourceVersion`` on, each later change; from ``0`` or none,
the present objects first, as ADDED, and with ``sendInitialEvents`` from any other too. A client
that allows bookmarks then gets one that marks their end, and others from time to time and shortly
before the end, if the server's version is later than the watch began with. So a client that is
ahead of a restored server hears nothing. The answer ends cleanly after ``timeoutSeconds``, or 30 to
60 minutes.

The thread that changes the store only appends to ``_queue`` and wakes the watch's thread, which
sends everything there is at once.
"""

from __future__ import annotations

import os
import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bpfsvc.devtools.lab.apiserver import status
from bpfsvc.devtools.lab.apiserver.faults import Faults
from bpfsvc.devtools.lab.apiserver.pages import Options, Selection
from bpfsvc.devtools.lab.apiserver.resources import ApiPath
from bpfsvc.devtools.lab.apiserver.status import Refusal
from bpfsvc.devtools.lab.apiserver.store import Change, Store, as_chunk, encode, event_chunk

END = b"0\r\n\r\n"
UNSUPPORTED = (
    "a watch stream was requested by the client but the required storage feature "
    "RequestWatchProgress is disabled"
)
_SHORTEST = 1800.0  # seconds, kube-apiserver's --min-request-timeout
_FAREWELL = 2.0  # seconds before the end at which the last bookmark is sent


class _Line(NamedTuple):
    """A chunk to be sent not before ``due``."""

    due: float
    chunk: bytes
    event: bool = True


class Watch:
    """A watch from its request on. ``run`` sends its events until its end."""

    def __init__(self, store: Store, faults: Faults, target: ApiPath, options: Options) -> None:
        self.target = target
        self.options = options
        self.sent = 0
        """Events sent, without bookmarks."""
        self._store = store
        self._faults = faults
        self._selection = Selection.read(target, options)
        self._queue: deque[_Line] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._beyond = 0
        self._begun = 0
        """The version that the client has from the beginning."""
        self._cut: bool | None = None  # True: inside a line
        self._closed = False
        self._open()

    def _open(self) -> None:
        """Queue the first lines, and listen; ``Refusal`` if the watch cannot be served."""
        resource, options = self.target.resource, self.options
        try:
            initial = self._initial()
            with self._store.lock:
                if initial:
                    asked = int(options.version or 0)
                    if asked > self._store.version:
                        raise status.too_large(asked, self._store.version)
                    for record in self._store.at(resource, self._store.version):
                        if self._selection.selects(record):
                            self._queue_chunk(
                                event_chunk("ADDED", record.single(bare=options.bare))
                            )
                    if options.bookmarks:
                        self._append(self._bookmark(initial=True), event=False)
                    self._begun = self._store.version
                else:
                    asked = int(options.version or 0) or self._store.version
                    for change in self._store.since(resource, asked):
                        self._offer(change)
                    self._beyond = asked if asked > self._store.version else 0
                    self._begun = asked
                self._store.listen(resource, self._offer)
        except Refusal:
            os.close(self._wake)
            raise

    def _initial(self) -> bool:
        """True if the watch begins with the present objects; ``Refusal`` if options conflict."""
        options, match = self.options, "resourceVersionMatch"
        if options.initial_events is None:
            if options.match:
                raise status.forbidden_option(
                    match, f"{match} is forbidden for watch unless sendInitialEvents is provided"
                )
            initial = options.version in ("", "0")
            self._needs_progress(initial)
            return initial
        if options.match != "NotOlderThan":
            needs = f"sendInitialEvents requires setting {match} to NotOlderThan"
            mistakes = [status.forbidden_field(match, needs)]
            if options.match:
                mistakes.append(status.unsupported_value(match, options.match, ["NotOlderThan"]))
            raise status.wrong_options(*mistakes)
        if self._faults.watch_list == "invalid":
            raise status.forbidden_option(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate is "
                "enabled",
            )
        if self._faults.watch_list == "bad request":
            raise Refusal(400, "sendInitialEvents is not supported by this server")
        self._needs_progress(options.initial_events)
        return options.initial_events

    def _needs_progress(self, initial: bool) -> None:
        """Refuse a mark after the initial events if the server's etcd is too old for it."""
        if self._faults.watch_list == "recorded" and initial and self.options.bookmarks:
            raise Refusal(500, UNSUPPORTED)

    # -- by other threads ---------------------------------------------------------------------

    def _offer(self, change: Change) -> None:
        if change.version <= self._beyond:
            return  # the client has this revision already, from a server that was ahead
        kind = change.kind(self._selection.selects)
        if kind is not None:
            for _ in range(1 + self._faults.duplicates):
                self._append(change.chunk(kind, bare=self.options.bare))

    def _append(self, chunk: bytes, *, event: bool = True) -> None:
        self._queue_chunk(chunk, event=event)
        self.wake()

    def _queue_chunk(self, chunk: bytes, *, event: bool = True) -> None:
        """Queue a chunk without waking the watch's thread; so it must not be waiting yet."""
        self._queue.append(_Line(time.monotonic() + self._faults.delay, chunk, event))

    def wake(self) -> None:
        """Wake the watch's thread, which then reads the queue and the faults."""
        with self._store.lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def cut(self, *, inside: bool = False) -> None:
        """Break the watch now; ``inside``: in the middle of the next line."""
        self._cut = inside
        self.wake()

    # -- by the watch's own thread ------------------------------------------------------------

    def run(self, connection: socket.socket, send: Callable[[bytes], None]) -> bool:
        """Send events until the end; return True if it was clean and the connection stays open.

        ``send`` takes bytes of the body; ``connection`` shows if the client has closed.
        """
        poll = select.poll()
        poll.register(connection, select.POLLIN | select.POLLRDHUP)
        poll.register(self._wake, select.POLLIN)
        lifetime = self.options.timeout or random.uniform(_SHORTEST, 2 * _SHORTEST)
        started = time.monotonic()
        end = started + lifetime
        farewell = end - min(_FAREWELL, lifetime / 10)
        mark = started + self._faults.bookmark_period
        while True:
            now = time.monotonic()
            if self._cut is False or (self._cut and self._cut_inside(send)):
                return False
            if now >= end:
                send(END)
                return True
            if self.options.bookmarks and (now >= mark or now >= farewell):
                with self._store.lock:
                    if self._store.version > self._begun:
                        self._append(self._bookmark(), event=False)
                mark = now + self._faults.bookmark_period
                farewell = end if now >= farewell else farewell
            if not self._faults.silent and not self._send_due(send):
                return False
            moments = [end]
            if self.options.bookmarks:
                moments += [mark, farewell]
            if self._queue and not self._faults.silent:
                moments.append(self._queue[0].due)
            wait = min(moments) - time.monotonic()
            for descriptor, _ in poll.poll(max(0.0, wait) * 1000 + 0.5 if wait > 0 else 0):
                if descriptor != self._wake:
                    return False  # a client sends on a watch only to end it
                os.eventfd_read(self._wake)

    def _send_due(self, send: Callable[[bytes], None]) -> bool:
        """Send the due lines; return False if the last one was that before a cut."""
        now = time.monotonic()
        lines: list[_Line] = []
        limit = self._faults.cut_after
        while self._queue and self._queue[0].due <= now:
            if limit is not None and self.sent >= limit:
                break
            line = self._queue.popleft()
            lines.append(line)
            self.sent += line.event
        if lines:
            send(b"".join([line.chunk for line in lines]))
        return limit is None or self.sent < limit

    def _cut_inside(self, send: Callable[[bytes], None]) -> bool:
        """Send half of the next line, if there is one."""
        if not self._queue:
            return False
        line = self._queue.popleft().chunk.partition(b"\r\n")[2][:-2]
        # A separate chunk, as a proxy may cut it, or HTTP libraries would withhold the half.
        send(as_chunk(line[: len(line) // 2]))
        return True

    def _bookmark(self, *, initial: bool = False) -> bytes:
        """Return a bookmark of the present revision; call it under the store's lock.

        An empty object with only the version, as Go prints it.
        """
        resource = self.target.resource
        metadata: dict[str, object] = {"resourceVersion": self._store.resource_version}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        body = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
        return event_chunk("BOOKMARK", encode(body | resource.empty))

    def pending(self) -> int:
        """Return the number of lines that wait to be sent."""
        return len(self._queue)

    def close(self) -> None:
        """Stop listening; called by its own thread at the end."""
        with self._store.lock:
            self._store.unlisten(self.target.resource, self._offer)
            self._closed = True
        os.close(self._wake)
