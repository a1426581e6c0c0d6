"""Where objects come from: the interface that every source has.

A source sends objects in batches. The first batch holds everything and is ``complete``; each later
one holds only what differs. The agent knows no more of a source, so a directory of manifests and an
API server are the same to it, and a test can be a source of three lines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.model import EndpointSlice, ModelObject, ObjectKey, PodPlace

__all__ = ["Batch", "Names", "ParseError", "Source", "SourceUnavailable", "Trigger", "origin"]

Names = frozenset[tuple[str, str]]
"""Objects of one kind: namespace (empty for those without) and name."""

_NONE_LISTED: Mapping[str, Names] = MappingProxyType({})


def origin(item: ModelObject) -> ObjectKey:
    """Return the key of the API's object; a slice may be a part of a classic Endpoints object."""
    if isinstance(item, EndpointSlice) and item.kind == "Endpoints":
        return ObjectKey(item.kind, item.namespace, item.service)
    return item.key


class SourceUnavailable(BpfsvcError):
    """A source cannot begin: its directory is missing, its server is not configured."""


class ParseError(NamedTuple):
    """Something in the source that cannot be used, for a person to fix.

    ``line`` counts from 1; 0 means the file as a whole. ``key`` names the object if only one is
    concerned; without it, objects of any name may be missing. ``service``: namespace and name of
    the Service that the endpoints of the object belong to, if that can be read. ``hides``: False if
    all objects are known nevertheless.
    """

    file: str
    line: int
    reason: str
    key: ObjectKey | None = None
    service: tuple[str, str] | None = None
    hides: bool = True

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}" if self.line else self.file
        return f"{location}: {self.reason}"


class Trigger(NamedTuple):
    """When something happened in the cluster that led to a change of endpoints, in Unix seconds.

    ``family`` is 4 or 6.
    """

    family: int
    seconds: float


class Batch(NamedTuple):
    """What changed, all at one moment.

    * ``puts``: objects that are new or have another value than before.
    * ``gone``: objects that are no more.
    * ``complete``: with this batch, everything the source holds has been sent.
    * ``problems``: all that is broken now, not only what broke; empty when all is well. Objects of
      a broken file keep their last good value and are not in ``gone``.
    * ``listed``: by kind, the names of all objects that exist; any other object is gone.
    * ``triggers``: what led to the changes of endpoints in ``puts``, as far as the objects say.
    * ``arrived``: when the agent has got it, by the monotonic clock; 0 before.
    """

    puts: tuple[ModelObject, ...]
    gone: tuple[ObjectKey, ...]
    complete: bool
    problems: tuple[ParseError, ...]
    listed: Mapping[str, Names] = _NONE_LISTED
    triggers: tuple[Trigger, ...] = ()
    arrived: float = 0.0


class Source(Protocol):
    """Anything that sends batches of objects."""

    def follow(self, stop: threading.Event, put: Callable[[Batch], None]) -> None:
        """Put batches as changes happen; return soon after ``stop`` is set.

        ``put`` may be called by any thread, one at a time. Raises :class:`SourceUnavailable` if it
        cannot begin.
        """
        ...

    def outage(self) -> str | None:
        """Return why the objects may be out of date, ``None`` if they are not. For any thread."""
        ...

    def find_pod(self, namespace: str, name: str) -> PodPlace | None:
        """Return where a Pod is, ``None`` if there is none. For any thread; it may take seconds.

        Raises :class:`BpfsvcError` if that cannot be found out.
        """
        ...
