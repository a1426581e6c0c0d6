"""The requests of one resource, each of which another thread may interrupt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bpfsvc.apiserver import cutting, decoding, objects
from bpfsvc.apiserver.connection import READ_SECONDS, Answer, Connection
from bpfsvc.apiserver.decoding import Event
from bpfsvc.apiserver.objects import Found
from bpfsvc.apiserver.resources import Query, Variant
from bpfsvc.apiserver.trouble import ApiError, Refused

VERSION = "/version"

PAGE = 500
"""Objects in a page, as client-go asks for."""


Group = list[Event]
"""Events that arrived together."""


class Asking:
    """Asks for lists and watches; ``heard`` is called for everything that arrives.

    ``silence_of_lists`` is how long the server may say nothing in the middle of a list.
    """

    def __init__(
        self,
        connection: Connection,
        heard: Callable[[], None],
        stop: threading.Event,
        silence_of_lists: float,
    ) -> None:
        self._connection = connection
        self._heard = heard
        self._stop = stop
        self._silence_of_lists = silence_of_lists
        self._lock = threading.Lock()
        self._answer: Answer | None = None

    def interrupt(self) -> None:
        """End what is being read; from any thread, after ``stop`` is set."""
        with self._lock:
            if self._answer:
                self._answer.interrupt()

    @contextmanager
    def answer(
        self, path: str, query: Query, silence: float, *, compressed: bool = False
    ) -> Iterator[Answer]:
        """Ask, and close the answer behind the block; raises as ``Connection.get``."""
        answer = self._connection.get(path, query, read_timeout=silence, compressed=compressed)
        try:
            with self._lock:
                self._answer = answer
            if self._stop.is_set():
                answer.interrupt()
            yield answer
        finally:
            with self._lock:
                self._answer = None
            answer.close()

    def events(self, answer: Answer) -> Iterator[Group]:
        """Give events as they arrive; those before an error are given before it is raised."""
        for lines in cutting.lines(self._pieces(answer)):
            group: Group = []
            for line in lines:
                try:
                    group.append(decoding.event(line))
                except ApiError:
                    yield group
                    raise
            yield group

    def pages(self, variant: Variant, version: str, limit: int) -> Pages:
        """Ask for a list as new as ``version``: ``0`` is any, empty is the present.

        ``limit`` is how many objects make a page; 0 for no pages.
        """
        chosen: Query = (("resourceVersion", version),) if version else ()
        if version not in ("", "0"):
            # With a limit it would mean that very version, which may be forgotten.
            chosen += (("resourceVersionMatch", "NotOlderThan"),)
            limit = 0
        return Pages(self, variant, chosen, (("limit", str(limit)),) if limit else ())

    @contextmanager
    def list(self, path: str, query: Query) -> Iterator[cutting.List]:
        """Ask for a page of a list."""
        with self.answer(path, query, self._silence_of_lists, compressed=True) as answer:
            yield cutting.List(self._pieces(answer))

    def offers(self, variant: Variant) -> bool | None:
        """Tell whether the server has a variant, by what it says of itself; None if it does not.

        A 404 may come from anybody on the way to a server that is not there.
        """
        try:
            if f'"{variant.api_version}"'.encode() not in self._said("/apis", b"APIGroupList"):
                return False
            resources = self._said(f"/apis/{variant.api_version}", b"APIResourceList")
        except ApiError:
            return None
        return f'"{variant.plural}"'.encode() in resources

    def _said(self, path: str, kind: bytes) -> bytes:
        with self.answer(path, (), self._silence_of_lists) as answer:
            text = b"".join(self._pieces(answer))
        if kind not in text:
            raise Refused(404, f"{path} is not answered as an API server does it")
        return text

    def _pieces(self, answer: Answer) -> Iterator[bytes]:
        for piece in answer.pieces():
            self._heard()
            yield piece


def version(connection: Connection) -> dict[str, str]:
    """Ask what the server says of itself; raises as ``Connection.get``."""
    answer = connection.get(VERSION, (), read_timeout=READ_SECONDS)
    try:
        return decoding.version(b"".join(answer.pieces()))
    finally:
        answer.close()


class Pages:
    """A list of any number of pages. Once iterated over, ``version`` is that of the list."""

    def __init__(self, asking: Asking, variant: Variant, version: Query, sized: Query) -> None:
        self._asking = asking
        self._variant = variant
        self._version = version
        self._sized = sized
        self.version = ""
        self.count = 0
        """Pages read so far."""

    def __iter__(self) -> Found:
        rest = self._version
        while True:
            query = (*self._variant.query, *self._sized, *rest)
            with self._asking.list(self._variant.path, query) as page:
                for item in page.items():
                    yield objects.named(item, page.head)
                head = page.head
            self.count += 1
            self.version = head.version
            if not head.token:
                return
            rest = (("continue", head.token),)
