"""What a resource tells the source, and how updates become the batches that the agent gets.

Updates that wait together are told together, the last word about each object counting. Nothing is
kept of them afterwards: the agent has the objects, and ten thousand need not be held twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bpfsvc.model import EndpointSlice, ModelObject, ObjectKey
from bpfsvc.sources import Batch, Names, Problem, Trigger

Identity = tuple[str, str]
"""Namespace (empty without one) and name."""


class Update(NamedTuple):
    """What changed of one resource.

    ``whole``: kinds of which the named objects are all there are. ``problems``: all objects that
    cannot be read now; None if that is as it was.
    """

    resource: str
    puts: tuple[ModelObject, ...] = ()
    gone: tuple[ObjectKey, ...] = ()
    whole: tuple[tuple[str, Names], ...] = ()
    problems: tuple[Problem, ...] | None = None
    triggers: tuple[Trigger, ...] = ()


class Gathering:
    """Updates on their way into one batch."""

    def __init__(self) -> None:
        self._updates: list[Update] = []

    def add(self, update: Update) -> None:
        """Take one more."""
        self._updates.append(update)

    def batch(self, problems: tuple[Problem, ...]) -> Batch:
        """Make the batch of all that was taken."""
        puts, gone, whole = _merge(self._updates)
        triggers = tuple(trigger for update in self._updates for trigger in update.triggers)
        return Batch(puts, gone, True, problems, whole, triggers)


Merged = tuple[tuple[ModelObject, ...], tuple[ObjectKey, ...], dict[str, Names]]


def _merge(updates: list[Update]) -> Merged:
    if len(updates) == 1:
        (update,) = updates
        return update.puts, update.gone, dict(update.whole)
    by_resource: dict[str, list[Update]] = {}
    for update in updates:
        by_resource.setdefault(update.resource, []).append(update)
    puts: tuple[ModelObject, ...] = ()
    gone: tuple[ObjectKey, ...] = ()
    whole: dict[str, Names] = {}
    for some in by_resource.values():
        # Resources share no kind. Keys of ten thousand objects are only made where needed.
        more = _merge(some) if len(some) == 1 else _merge_one_resource(some)
        puts += more[0]
        gone += more[1]
        whole |= more[2]
    return puts, gone, whole


def _merge_one_resource(updates: Iterable[Update]) -> Merged:
    changes: dict[ObjectKey, ModelObject | None] = {}
    whole: dict[str, set[Identity]] = {}
    for update in updates:
        if update.whole:
            kinds = {kind for kind, _ in update.whole}
            changes = {key: put for key, put in changes.items() if key.kind not in kinds}
            whole |= {kind: set(names) for kind, names in update.whole}
        for key in update.gone:
            changes[key] = None
            if key.kind in whole:
                whole[key.kind].discard((key.namespace, key.name))
        for put in update.puts:
            key = put.key
            changes[key] = put
            if key.kind in whole:
                whole[key.kind].add((key.namespace, key.name))
    return (
        tuple(put for put in changes.values() if put is not None),
        tuple(key for key, put in changes.items() if put is None),
        {kind: frozenset(names) for kind, names in whole.items()},
    )


def triggers(objects: Iterable[ModelObject], seconds: float) -> tuple[Trigger, ...]:
    """Give a trigger for each family among endpoints that a change at ``seconds`` led to."""
    families = {one.family for one in objects if isinstance(one, EndpointSlice)} - {0}
    return tuple(Trigger(family, seconds) for family in sorted(families))
