"""Where objects come from: the interface that every source answers.

A source tells of objects in batches. The first batch holds everything and says ``complete``; each
later one holds only what differs. That is all the agent knows, so a directory of manifests and an
API server are the same to it, and a test can be a source of three lines.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from bpfsvc.errors import BpfsvcError
from bpfsvc.model import ModelObject, ObjectKey

__all__ = ["Batch", "Names", "Problem", "Source", "SourceUnavailable", "Trigger"]

Names = frozenset[tuple[str, str]]
"""Objects of one kind: namespace (empty for those without) and name."""

_NOT_TOLD: Mapping[str, Names] = MappingProxyType({})


class SourceUnavailable(BpfsvcError):
    """A source cannot even begin: its directory is missing, its server is not configured."""


class Problem(NamedTuple):
    """Something in the source that cannot be used, for a person to mend.

    ``line`` counts from 1; 0 means the file as a whole. ``key`` names the object where one alone is
    concerned; without it nobody knows what else is hidden.
    """

    file: str
    line: int
    reason: str
    key: ObjectKey | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.reason}"


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
    * ``complete``: everything the source holds has been told, this batch included.
    * ``problems``: all that is broken now, not only what broke; empty when all is well. Objects of
      a broken file keep their last good value and are not in ``gone``.
    * ``whole``: kinds of which the named objects are all there are; any other is gone.
    * ``triggers``: what led to the changes of endpoints in ``puts``, as far as it is told.
    """

    puts: tuple[ModelObject, ...]
    gone: tuple[ObjectKey, ...]
    complete: bool
    problems: tuple[Problem, ...]
    whole: Mapping[str, Names] = _NOT_TOLD
    triggers: tuple[Trigger, ...] = ()


class Source(Protocol):
    """Anything that tells of objects."""

    def watch(self, stop: threading.Event) -> Iterator[Batch]:
        """Give batches as changes happen; end soon after ``stop`` is set.

        Raises :class:`SourceUnavailable` if it cannot begin.
        """
        ...

    def absence(self) -> str | None:
        """Say why what was told may be out of date; None if it is not. For any thread."""
        ...
