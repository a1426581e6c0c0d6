"""The requests of one resource; another thread can interrupt each request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bpfsvc.kube import decoding, object_tracker, stream
from bpfsvc.kube.client.connection import READ_SECONDS, ApiConnection, Response
from bpfsvc.kube.decoding import Event
from bpfsvc.kube.errors import GONE, ApiError, InvalidResponse, Refused
from bpfsvc.kube.object_tracker import Found
from bpfsvc.kube.resources import Query, Variant
from bpfsvc.model import ObjectError, PodPlace, read_pod_places

VERSION = "/version"

PAGE = 500
"""Objects in a page, as client-go asks for."""


Group = list[Event]
"""Events that arrived together."""


class Requests:
    """Sends requests for lists and watches; ``on_data`` is called for everything that arrives.

    ``list_idle_seconds`` is how long the server may send nothing in the middle of a list.
    """

    def __init__(
        self,
        connection: ApiConnection,
        on_data: Callable[[], None],
        stop: threading.Event,
        list_idle_seconds: float,
    ) -> None:
        self._connection = connection
        self._on_data = on_data
        self._stop = stop
        self._list_idle_seconds = list_idle_seconds
        self._lock = threading.Lock()
        self._response: Response | None = None

    def interrupt(self) -> None:
        """End the read in progress; from any thread, after ``stop`` is set."""
        with self._lock:
            if self._response:
                self._response.interrupt()

    @contextmanager
    def response(
        self, path: str, query: Query, idle_seconds: float, *, compressed: bool = False
    ) -> Iterator[Response]:
        """Send a request, close the response after the block; raises as ``ApiConnection.get``."""
        response = self._connection.get(
            path, query, read_timeout=idle_seconds, compressed=compressed
        )
        try:
            with self._lock:
                self._response = response
            if self._stop.is_set():
                response.interrupt()
            yield response
        finally:
            with self._lock:
                self._response = None
            response.close()

    def events(self, response: Response) -> Iterator[Group]:
        """Return events as they arrive; those before an error come before it is raised."""
        for lines in stream.lines(self._pieces(response)):
            group: Group = []
            for line in lines:
                try:
                    group.append(decoding.event(line))
                except ApiError:
                    yield group
                    raise
            yield group

    def pages(self, variant: Variant, version: str, limit: int) -> ListPages:
        """Return a list as new as ``version``: ``0`` is any, empty is the newest.

        ``limit`` is how many objects make a page; 0 for no pages.
        """
        chosen: Query = (("resourceVersion", version),) if version else ()
        if version not in ("", "0"):
            chosen, limit = _not_older(version), 0
        return ListPages(self, variant, chosen, (("limit", str(limit)),) if limit else ())

    @contextmanager
    def list(self, path: str, query: Query) -> Iterator[stream.List]:
        """Send a request for a page of a list."""
        with self.response(path, query, self._list_idle_seconds, compressed=True) as response:
            yield stream.List(self._pieces(response))

    def require_version(self, variant: Variant, version: str) -> None:
        """Ask for a list of one object at least as new as ``version``.

        Raises :class:`Refused` with ``too_large`` if the server's objects are older. A server
        answers out of its cache, and waits for a while if the cache may be only late.
        """
        query = (*variant.query, ("limit", "1"), *_not_older(version))
        with self.list(variant.path, query) as page:
            for _ in page.items():
                pass
        if is_older(page.head.version, version):
            raise went_back()

    def offers(self, variant: Variant) -> bool | None:
        """True if the server lists a variant among its APIs; ``None`` without a usable answer.

        A 404 is no usable answer: a proxy in front of a server that is down may have sent it.
        """
        try:
            if f'"{variant.api_version}"'.encode() not in self._text("/apis", b"APIGroupList"):
                return False
            resources = self._text(f"/apis/{variant.api_version}", b"APIResourceList")
        except ApiError:
            return None
        return f'"{variant.plural}"'.encode() in resources

    def _text(self, path: str, kind: bytes) -> bytes:
        with self.response(path, (), self._list_idle_seconds) as response:
            text = b"".join(self._pieces(response))
        if kind not in text:
            raise Refused(404, f"no API server answers {path} in this way")
        return text

    def _pieces(self, response: Response) -> Iterator[bytes]:
        for piece in response.pieces():
            self._on_data()
            yield piece


def is_older(version: str, known: str) -> bool:
    """True if a version comes before another; versions that are no numbers cannot be compared."""
    return version.isdigit() and known.isdigit() and int(version) < int(known)


def went_back() -> Refused:
    """Return the error of a server whose objects are older than those that it sent before."""
    return Refused(GONE, "the server has returned to an older version", too_large=True)


def _not_older(version: str) -> Query:
    """Return the query for a state at least as new as ``version``.

    Without the second field, a limit makes it exactly that version, which may be dropped.
    """
    return ("resourceVersion", version), ("resourceVersionMatch", "NotOlderThan")


def version(connection: ApiConnection) -> dict[str, str]:
    """Return the server's ``/version``; raises as ``ApiConnection.get``."""
    response = connection.get(VERSION, (), read_timeout=READ_SECONDS)
    try:
        return decoding.version(b"".join(response.pieces()))
    finally:
        response.close()


def find_pods(connection: ApiConnection, namespace: str, name: str) -> list[PodPlace]:
    """Return where the Pod of a name is, or nothing; raises as ``ApiConnection.get``.

    It is a list of one, as the agent's role may list Pods, and not get them.
    """
    path, query = (
        f"/api/v1/namespaces/{namespace}/pods",
        (("fieldSelector", f"metadata.name={name}"),),
    )
    response = connection.get(path, query, read_timeout=READ_SECONDS)
    try:
        text = b"".join(response.pieces())
    finally:
        response.close()
    try:
        return read_pod_places(text)
    except ObjectError as error:
        raise InvalidResponse(f"the list of Pods cannot be read: {error}") from error


class ListPages:
    """A list of any number of pages. After the last page, ``version`` is the list's version."""

    def __init__(self, requests: Requests, variant: Variant, version: Query, sized: Query) -> None:
        self._requests = requests
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
            with self._requests.list(self._variant.path, query) as page:
                for item in page.items():
                    yield object_tracker.with_kind(item, page.head)
                head = page.head
            self.count += 1
            self.version = head.version
            if not head.token:
                return
            rest = (("continue", head.token),)
