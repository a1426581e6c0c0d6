"""Which names events may have, for the filters of a reader that asks for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from bpfsvc.services.cache import Cache, Known

_NEAR = 5
_LIKE = 0.5
"""How like a near name is: 1 is equal."""


def _namespaces(known: Known) -> Iterator[str]:
    for thing in (known.service, *known.slices):
        if thing:
            yield thing.namespace


def _services(known: Known) -> Iterator[str]:
    if known.service:
        yield f"{known.service.namespace}/{known.service.name}"


def _pods(known: Known) -> Iterator[str]:
    for part in known.slices:
        for name in part.pod_names():
            if name:
                yield f"{part.namespace}/{name}"


def _nodes(known: Known) -> Iterator[str]:
    for part in known.slices:
        for _, traits in part.endpoints():
            if traits.node:
                yield traits.node


KINDS_OF_NAMES: dict[str, Callable[[Known], Iterator[str]]] = {
    "namespace": _namespaces,
    "service": _services,
    "pod": _pods,
    "node": _nodes,
}


def near_names(cache: Cache, kind: str, name: str) -> list[str] | None:
    """Return known names that are like ``name``; None if the name is known.

    ``kind``: of :data:`KINDS_OF_NAMES`. The name of a Service or pod may lack its namespace, and
    that of a pod its end.
    """
    names = {text for known in cache.all_known() for text in KINDS_OF_NAMES[kind](known)}
    if kind == "node":
        names.add(cache.node.name)
    bare = kind in ("service", "pod") and "/" not in name
    by_text = {text.partition("/")[2] if bare else text: text for text in sorted(names)}
    if name in by_text:
        return None
    if kind == "pod" and any(text.startswith(name) for text in by_text):
        return None
    return [by_text[text] for text in get_close_matches(name, by_text, _NEAR, _LIKE)]
