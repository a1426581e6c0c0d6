"""The output of ``nft -j list``: tables, chains, rules and sets. Pure.

libnftables-json(5) has the format. Each reader raises ``ValueError``, ``KeyError``, ``TypeError``
or ``AttributeError`` for output of another form: :data:`NOT_UNDERSTOOD`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

NOT_UNDERSTOOD = (ValueError, KeyError, TypeError, AttributeError)

Json = Any
"""A part of nft's output."""

Expressions = Sequence[Mapping[str, Json]]
"""The conditions and statements of a rule."""


class Chain(NamedTuple):
    """A chain: the family of its table (``ip``, ``inet``, ``netdev`` ...), table and name.

    Only a chain that the kernel calls has a priority, a kind (``filter``, ``nat``), a hook and a
    policy.
    """

    family: str
    table: str
    name: str
    priority: int = 0
    kind: str = ""
    hook: str = ""
    policy: str = ""


class NamedSet(NamedTuple):
    """A set or map with a name: its elements as nft prints them, and the seconds that they stay."""

    elements: Sequence[Json]
    timeout: int


class Rule(NamedTuple):
    """A rule; ``handle`` is its number, which ``nft -a`` prints, too."""

    expressions: Expressions
    handle: int


class Listing(NamedTuple):
    """The content of one listing. ``tables``: (family, name); ``rules``: by the name of a chain."""

    tables: tuple[tuple[str, str], ...]
    chains: tuple[Chain, ...]
    rules: Mapping[str, Sequence[Rule]]
    sets: Mapping[str, NamedSet]


_CHAIN = {"family": "", "table": "", "name": "", "prio": 0, "type": "", "hook": "", "policy": ""}
"""The keys of a chain in nft's output, as the fields of :class:`Chain`, and the defaults."""


def read_listing(text: str) -> Listing:
    """Return the content of ``nft -j list table``, ``list chains`` or ``list tables``."""
    items = [item for listed in json.loads(text)["nftables"] for item in listed.items()]
    rules: dict[str, list[Rule]] = {}
    for kind, value in items:
        if kind == "rule":
            rule = Rule(value["expr"], value.get("handle", 0))
            rules.setdefault(value["chain"], []).append(rule)
    return Listing(
        tuple((value["family"], value["name"]) for kind, value in items if kind == "table"),
        tuple(
            Chain(*(value.get(key, default) for key, default in _CHAIN.items()))
            for kind, value in items
            if kind == "chain"
        ),
        rules,
        {
            value["name"]: NamedSet(value.get("elem", ()), value.get("timeout", 0))
            for kind, value in items
            if kind in ("set", "map")
        },
    )


def called_chains(expressions: Iterable[Mapping[str, Json]]) -> Iterator[str]:
    """Yield the chains that a rule calls, also by a map of verdicts in it; not by a named map."""
    for expression in expressions:
        for kind, value in expression.items():
            if kind in ("jump", "goto"):
                yield value["target"]
            elif kind == "vmap" and isinstance(value["data"], Mapping):
                yield from called_chains(verdict for _, verdict in value["data"]["set"])


def has_named_map(expressions: Expressions) -> bool:
    """True if a rule looks verdicts up in a map with a name."""
    return any(isinstance(part.get("vmap", {}).get("data"), str) for part in expressions)


def flat_values(value: Json, sets: Mapping[str, NamedSet]) -> Iterator[Json]:
    """Yield the values of a set, of a named set (``@name``), of a list, or the single value.

    The keys stand for the elements of a map. Comments and time-outs of elements are left out.
    """
    if isinstance(value, str) and value.startswith("@"):
        elements = sets[value[1:]].elements if value[1:] in sets else ()
        for element in elements:
            yield from flat_values(element[0] if isinstance(element, list) else element, sets)
    elif isinstance(value, Mapping) and "set" in value:
        yield from flat_values(value["set"], sets)
    elif isinstance(value, Mapping) and "elem" in value:
        yield from flat_values(value["elem"]["val"], sets)
    elif isinstance(value, list):
        for element in value:
            yield from flat_values(element, sets)
    else:
        yield value
