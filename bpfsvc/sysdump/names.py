"""The names of objects that a node knows, beside those that the agent's objects have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.model.answers import ChangeRecord
from bpfsvc.model.failures import Failure


def in_changes(changes: Iterable[ChangeRecord]) -> Iterator[str]:
    """Yield names of Services that have changed."""
    for change in changes:
        for service in change.services:
            yield from service.split("/")


def in_failures(failures: Iterable[Failure]) -> Iterator[str]:
    """Yield names of Services, pods and nodes of connections that failed."""
    for failure in failures:
        yield from failure.service.partition(":")[0].split("/")
        for words in (failure.backend, *failure.clients):
            # An address comes first, then the names of a pod and its node.
            for word in words.split()[1:]:
                yield from word.strip("(),").split("/")
