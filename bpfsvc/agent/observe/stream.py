"""Events of this node's connections for the readers of the local socket, and a memory of them.

One thread reads the kernel's ring several times a second while somebody reads, and once a second
otherwise: then the programs tell of failures alone, and these are remembered.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from enum import Enum, auto
from functools import partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qs

from bpfsvc.agent.history.failures import FailureHistory
from bpfsvc.agent.observe.elsewhere import DropCounter, DropsElsewhere
from bpfsvc.agent.observe.kernel import ELSEWHERE, FAILURES, Asked, KernelEvents
from bpfsvc.agent.observe.known_names import KINDS_OF_NAMES, near_names
from bpfsvc.agent.observe.readers import MOST_READERS, Reader, Wish
from bpfsvc.agent.observe.sampling import Sample
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.http.local_server import failure
from bpfsvc.http.server import JSON, Request, Response, Route
from bpfsvc.model.events import Event, encode_event
from bpfsvc.model.failures import failure_of
from bpfsvc.services.cache import Cache

LINES = "application/x-ndjson"

REMEMBERED = 2048
"""Events of each class that are remembered: failures, drops elsewhere, and others.

They take some 1 MB for each class that comes.
"""

_FAST, _SLOW = 0.05, 1.0
"""Seconds between two looks, with and without a reader."""
_ADAPT_SECONDS = 0.25
_MOST_AT_ONCE = 8192

_CONNECTIONS_LIMIT = 5000.0
_FAILURES_LIMIT = 2500.0
_UNREAD_LIMIT = 500.0
"""Events of a class per second, beyond which they are sampled; the last without a reader."""


class _Class(Enum):
    """Classes of events: those of one class do not push out those of another."""

    PROGRESS = auto()
    FAILURE = auto()
    ELSEWHERE = auto()


def _class_of(event: Event) -> _Class:
    if event.kind == ELSEWHERE:
        return _Class.ELSEWHERE
    return _Class.FAILURE if event.kind in FAILURES else _Class.PROGRESS


class EventStream:
    """Has the events of the programs of ``directory`` in a thread of its own."""

    def __init__(
        self,
        directory: Callable[[], Path],
        cache: Cache,
        node: str,
        history: FailureHistory,
        counter: DropCounter,
        log: Callable[[str], None],
    ) -> None:
        """``directory()``: where the programs are pinned. The thread opens them."""
        self._history = history
        self._counter = counter
        self._directory = directory
        self._elsewhere = DropsElsewhere(directory)
        self._cache = cache
        self._node = node
        self._log = log
        self._lock = threading.Lock()
        self._taken = 0
        self._new: list[tuple[socket.socket, Wish]] = []
        self._readers: list[Reader] = []
        self._memory = {kind: deque[tuple[float, bytes]](maxlen=REMEMBERED) for kind in _Class}
        self._samples = (Sample(), Sample())
        self._came = [0, 0]
        self._adapted_at = 0.0
        self._lost = 0
        self._wake = threading.Event()
        self._stopped = False
        self._failed = ""
        self._thread = threading.Thread(target=self._run, name="observe", daemon=True)

    def start(self) -> None:
        """Begin to read the kernel's events."""
        self._thread.start()

    def stop(self) -> None:
        """End the streams of all readers."""
        self._stopped = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=2)
        self._elsewhere.stop()

    def routes(self) -> dict[str, Route]:
        """Return what the local server answers, by path. Any thread may call these."""
        return {"/observe": self._respond, "/observe/names": self._name}

    def _name(self, request: Request) -> Response:
        """Answer whether a name is known, and which known names are near."""
        query = parse_qs(request.query)
        kind, name = (query.get(field, [""])[0] for field in ("kind", "name"))
        if kind not in KINDS_OF_NAMES:
            return failure(HTTPStatus.BAD_REQUEST, f"an agent of this version knows no {kind}")
        near = near_names(self._cache, kind, name)
        return Response(HTTPStatus.OK, json.dumps({"near": near}).encode(), JSON)

    def _respond(self, request: Request) -> Response:
        """Answer a reader with a stream, or say why there is none."""
        try:
            wish = _wish(request.query)
        except ValueError as error:
            return failure(HTTPStatus.BAD_REQUEST, str(error))
        if self._failed or not self._thread.is_alive():
            reason = self._failed or "the agent has not attached its programs yet"
            return failure(HTTPStatus.SERVICE_UNAVAILABLE, reason)
        with self._lock:
            if self._taken >= MOST_READERS:
                text = f"{MOST_READERS} commands read events already; end one of them first"
                return failure(HTTPStatus.TOO_MANY_REQUESTS, text)
            self._taken += 1
        if wish.drops:
            try:
                self._elsewhere.enter()
            except BpfsvcError as error:
                with self._lock:
                    self._taken -= 1
                return failure(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        return Response(HTTPStatus.OK, b"", LINES, stream=partial(self._admit, wish))

    def _admit(self, wish: Wish, client: socket.socket) -> None:
        with self._lock:
            self._new.append((client, wish))
        self._wake.set()

    # -- in the thread --

    def _run(self) -> None:
        try:
            with self._opened() as kernel:
                self._follow(kernel)
        except Exception as error:
            # Whatever it is: readers must not wait for events that do not come.
            self._fail(error)
        finally:
            for reader in self._readers:
                reader.close()
            self._elsewhere.stop()

    def _opened(self) -> closing[KernelEvents]:
        pinned = Pinned(self._directory())
        reason, count = self._elsewhere.reason, self._counter.add
        return closing(KernelEvents(pinned, self._cache, self._node, reason, count))

    def _follow(self, kernel: KernelEvents) -> None:
        kernel.skip()
        self._counter.start(self._elsewhere)
        self._ask(kernel)
        while not self._stopped:
            self._look(kernel)
            self._wake.wait(_FAST if self._readers else _SLOW)
            self._wake.clear()

    def _fail(self, error: Exception) -> None:
        said = str(error) if isinstance(error, BpfsvcError | OSError) else repr(error)
        self._failed = f"the kernel's events cannot be read: {said}"
        self._log(f"{self._failed}; bpfsvc observe shows nothing")

    def _look(self, kernel: KernelEvents) -> None:
        lines = self._remember_new(kernel)
        lost = kernel.lost()
        self._lost += lost
        for reader in self._readers:
            if lost:
                reader.put(reader.loss(lost, "kernel"))
            if reader.wish.follow:
                for is_elsewhere, line in lines:
                    if reader.wish.drops or not is_elsewhere:
                        reader.put(line)
        # What was in the ring before a reader came is not among the events from now on.
        self._take_new(kernel)
        for reader in self._readers:
            reader.send()
        self._adapt(kernel)
        self._drop_gone(kernel)

    def _remember_new(self, kernel: KernelEvents) -> list[tuple[bool, bytes]]:
        """Return the lines of the events that came, and whether they are drops elsewhere."""
        lines: list[tuple[bool, bytes]] = []
        for event in kernel.read(_MOST_AT_ONCE):
            of_class = _class_of(event)
            line = encode_event(event)
            if failed := failure_of(event):
                self._history.note(failed)
            self._memory[of_class].append((event.time, line))
            self._came[of_class is not _Class.PROGRESS] += 1
            lines.append((of_class is _Class.ELSEWHERE, line))
        return lines

    def _take_new(self, kernel: KernelEvents) -> None:
        with self._lock:
            new, self._new = self._new, []
        if not new:
            return
        for client, wish in new:
            reader = Reader(client, wish, self._node)
            for line in self._remembered(wish):
                reader.put(line)
            self._readers.append(reader)
        self._ask(kernel)

    def _remembered(self, wish: Wish) -> Iterable[bytes]:
        since, until = wish.since or 0.0, wish.until or float("inf")
        events = sorted(chain.from_iterable(self._memory.values()))
        lines = [line for at, line in events if since <= at <= until]
        return lines if wish.last is None else lines[max(0, len(lines) - wish.last) :]

    def _drop_gone(self, kernel: KernelEvents) -> None:
        gone = [reader for reader in self._readers if reader.is_gone]
        if not gone:
            return
        for reader in gone:
            reader.close()
            if reader.wish.drops:
                self._elsewhere.leave()
        self._readers = [reader for reader in self._readers if not reader.is_gone]
        with self._lock:
            self._taken -= len(gone)
        self._ask(kernel)

    def _ask(self, kernel: KernelEvents) -> None:
        connections, failures = (sample.mask for sample in self._samples)
        follows = any(reader.wish.follow for reader in self._readers)
        elsewhere = self._counter.is_on or any(reader.wish.drops for reader in self._readers)
        kernel.ask(Asked(follows, connections, failures, elsewhere))

    def _adapt(self, kernel: KernelEvents) -> None:
        """Ask for fewer events if more come than can be told, and for more afterwards."""
        now = time.monotonic()
        passed = now - self._adapted_at
        if passed < _ADAPT_SECONDS:
            return
        limits = (_CONNECTIONS_LIMIT, _FAILURES_LIMIT) if self._readers else (_UNREAD_LIMIT,) * 2
        lost = self._lost / 2
        changed = [
            sample.adapt((came + lost) / passed, limit)
            for sample, came, limit in zip(self._samples, self._came, limits, strict=True)
        ]
        self._adapted_at, self._came, self._lost = now, [0, 0], 0
        if any(changed):
            self._ask(kernel)


def _wish(query: str) -> Wish:
    """Return what the query of a request asks for; raise ``ValueError`` if it is malformed."""
    fields = {name: values[0] for name, values in parse_qs(query).items()}
    if unknown := fields.keys() - set(Wish._fields):
        raise ValueError(f"an agent of this version knows no {', '.join(sorted(unknown))}")
    last, since, until = (fields.get(name) for name in ("last", "since", "until"))
    return Wish(
        None if last == "all" else int(last or 0),
        float(since) if since else None,
        float(until) if until else None,
        fields.get("follow", "1") == "1",
        fields.get("drops", "0") == "1",
    )
