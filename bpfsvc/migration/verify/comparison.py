"""The differences between two proxies' decisions, Service by Service. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bpfsvc.migration.verify.decisions import NODE, Decision, Decisions, Treatment
from bpfsvc.services.entries import CLIENTS

NOTHING = Decision("", dict.fromkeys(CLIENTS, Treatment("pass")))
"""What happens where a proxy has no frontend."""


class Difference(NamedTuple):
    """One difference.

    * ``what``: ``frontend`` (only one has it), ``action``, ``backends`` (what only one of them
      has), ``affinity``, ``sources`` or ``addresses``.
    * ``clients``: the classes that it concerns; () for all.
    """

    service: str
    frontend: str
    clients: tuple[str, ...]
    what: str
    kube_proxy: tuple[str, ...]
    bpfsvc: tuple[str, ...]


def differences(theirs: Decisions, ours: Decisions) -> list[Difference]:
    """Return all differences, in the order of Services and frontends."""
    found = [*_of_addresses(theirs.nodeports, ours.nodeports)]
    for frontend in theirs.frontends.keys() | ours.frontends.keys():
        one, other = theirs.frontends.get(frontend), ours.frontends.get(frontend)
        if one is None or other is None:
            known = one or other or NOTHING
            if any(each.action != "pass" for each in known.clients.values()):
                found.append(_alone(frontend, known, is_theirs=one is not None))
        elif one != other:
            found += _of_decisions(frontend, one, other)
    return sorted(found)


def persistent(rounds: Iterable[list[Difference]]) -> list[Difference]:
    """Return the differences of the last round whose frontends differed in every one.

    A change is not applied by both at the same moment.
    """
    every = list(rounds)
    places = set.intersection(*({each.frontend for each in one} for one in every))
    return [each for each in every[-1] if each.frontend in places]


def _alone(frontend: str, known: Decision, *, is_theirs: bool) -> Difference:
    actions = tuple(sorted({each.action for each in known.clients.values()}))
    sides = (actions, ()) if is_theirs else ((), actions)
    return Difference(known.service, frontend, (), "frontend", *sides)


def _of_decisions(frontend: str, one: Decision, other: Decision) -> Iterator[Difference]:
    service = other.service or one.service
    by_sides: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for client in CLIENTS:
        theirs, ours = one.clients[client], other.clients[client]
        if theirs.action != ours.action:
            by_sides.setdefault(("action", (theirs.action,), (ours.action,)), []).append(client)
        if theirs.backends != ours.backends and theirs.backends and ours.backends:
            only = _only(theirs.backends, ours.backends), _only(ours.backends, theirs.backends)
            by_sides.setdefault(("backends", *only), []).append(client)
    for (what, *sides), clients in by_sides.items():
        yield Difference(service, frontend, tuple(clients), str(what), *map(tuple, sides))
    if one.affinity != other.affinity and any(each.backends for each in one.clients.values()):
        seconds = (f"{one.affinity} s",), (f"{other.affinity} s",)
        yield Difference(service, frontend, (), "affinity", *seconds)
    if one.sources != other.sources:
        yield Difference(service, frontend, (), "sources", one.sources, other.sources)


def _of_addresses(
    theirs: frozenset[str] | None, ours: frozenset[str] | None
) -> Iterator[Difference]:
    """Yield a difference if NodePorts answer at other addresses of a family that both know."""
    if theirs is None or ours is None:
        return
    for family in NODE:
        one = tuple(sorted(each for each in theirs if (":" in each) == (family == 6)))
        other = tuple(sorted(each for each in ours if (":" in each) == (family == 6)))
        if one and one != other:
            only = _only(one, other), _only(other, one)
            yield Difference("", f"{NODE[family]}:*", (), "addresses", *only)


def _only(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in one if each not in other)
