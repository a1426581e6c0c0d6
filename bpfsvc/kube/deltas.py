"""Updates of one resource, and how they become the batches that the agent gets.

Updates before the first batch become that batch, and the last value of each object counts. The
updates are not kept afterwards: the agent has the objects, and ten thousand objects need not be
held twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bpfsvc.kube.source import Batch, Names, ParseError, Trigger
from bpfsvc.model import EndpointSlice, ModelObject, ObjectKey

Identity = tuple[str, str]
"""Namespace (empty without one) and name."""


class Update(NamedTuple):
    """What changed of one resource.

    ``listed``: by kind, the names of all objects that exist. ``problems``: all objects that cannot
    be read now; ``None`` if they are the same as before.
    """

    resource: str
    puts: tuple[ModelObject, ...] = ()
    gone: tuple[ObjectKey, ...] = ()
    listed: tuple[tuple[str, Names], ...] = ()
    problems: tuple[ParseError, ...] | None = None
    triggers: tuple[Trigger, ...] = ()


def batch_of(updates: Sequence[Update], problems: tuple[ParseError, ...]) -> Batch:
    """Return the batch that updates make together."""
    puts, gone, listed = _merge(updates)
    triggers = tuple(trigger for update in updates for trigger in update.triggers)
    return Batch(puts, gone, True, problems, listed, triggers)


Merged = tuple[tuple[ModelObject, ...], tuple[ObjectKey, ...], dict[str, Names]]


def _merge(updates: Sequence[Update]) -> Merged:
    if len(updates) == 1:
        (update,) = updates
        return update.puts, update.gone, dict(update.listed)
    by_resource: dict[str, list[Update]] = {}
    for update in updates:
        by_resource.setdefault(update.resource, []).append(update)
    puts: tuple[ModelObject, ...] = ()
    gone: tuple[ObjectKey, ...] = ()
    listed: dict[str, Names] = {}
    for those in by_resource.values():
        # Resources share no kind. Keys of ten thousand objects are made only where needed.
        more = _merge(those) if len(those) == 1 else _merge_one_resource(those)
        puts += more[0]
        gone += more[1]
        listed |= more[2]
    return puts, gone, listed


def _merge_one_resource(updates: Iterable[Update]) -> Merged:
    changes: dict[ObjectKey, ModelObject | None] = {}
    listed: dict[str, set[Identity]] = {}
    for update in updates:
        if update.listed:
            kinds = {kind for kind, _ in update.listed}
            changes = {key: put for key, put in changes.items() if key.kind not in kinds}
            listed |= {kind: set(names) for kind, names in update.listed}
        for key in update.gone:
            changes[key] = None
            if key.kind in listed:
                listed[key.kind].discard((key.namespace, key.name))
        for put in update.puts:
            key = put.key
            changes[key] = put
            if key.kind in listed:
                listed[key.kind].add((key.namespace, key.name))
    return (
        tuple(put for put in changes.values() if put is not None),
        tuple(key for key, put in changes.items() if put is None),
        {kind: frozenset(names) for kind, names in listed.items()},
    )


def triggers(objects: Iterable[ModelObject], seconds: float) -> tuple[Trigger, ...]:
    """Return a trigger for each family of endpoints that a change at ``seconds`` led to."""
    families = {item.family for item in objects if isinstance(item, EndpointSlice)} - {0}
    return tuple(Trigger(family, seconds) for family in sorted(families))
