"""The differences between two proxies' decisions, Service by Service. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from bpfsvc.base.address import endpoint_text, family, unpack
from bpfsvc.base.networks import network_text
from bpfsvc.migration.decisions import ANY_NODE_ADDRESS, NO_DECISION, Decision, Decisions, differing
from bpfsvc.services.entries import CLIENTS, NODEPORT_TEXTS, Place, frontend_text
from bpfsvc.services.rules.nodeport_addresses import is_loopback

MISSING: Place = (b"", 0)
"""Stands for a slot that a frontend refers to and that has no backend."""

_T = TypeVar("_T")
_Texts = tuple[str, ...]


class Difference(NamedTuple):
    """One difference.

    * ``what``: ``frontend`` (only one proxy has it), ``action``, ``backends`` (those that only one
      proxy has), ``affinity``, ``sources`` or ``addresses``.
    * ``clients``: the classes that it concerns; () for all.
    """

    service: str
    frontend: str
    clients: _Texts
    what: str
    kube_proxy: _Texts
    bpfsvc: _Texts


def differences(kube_proxy: Decisions, bpfsvc: Decisions) -> list[Difference]:
    """Return all differences, in the order of Services and frontends."""
    listed = [*_of_addresses(kube_proxy.nodeports, bpfsvc.nodeports)]
    for frontend in kube_proxy.frontends.keys() | bpfsvc.frontends.keys():
        theirs = kube_proxy.frontends.get(frontend, NO_DECISION)
        ours = bpfsvc.frontends.get(frontend, NO_DECISION)
        compare = _alone if NO_DECISION in (theirs, ours) else _of_decisions
        listed += compare(ours.service or theirs.service, frontend_text(frontend), theirs, ours)
    return sorted(listed)


def persistent(rounds: Sequence[list[Difference]]) -> list[Difference]:
    """Return the differences of the last round at frontends that differed in every round.

    The two proxies do not apply a change at the same moment.
    """
    frontends = [{difference.frontend for difference in listed} for listed in rounds]
    always = set.intersection(*frontends)
    return [difference for difference in rounds[-1] if difference.frontend in always]


def _alone(service: str, frontend: str, theirs: Decision, ours: Decision) -> Iterator[Difference]:
    """Yield a difference if only one proxy has a frontend, and does something there."""
    sides = [() if decision is NO_DECISION else decision.actions for decision in (theirs, ours)]
    if any(actions not in ((), ("pass",)) for actions in sides):
        yield Difference(service, frontend, (), "frontend", *sides)


def _of_decisions(
    service: str, frontend: str, theirs: Decision, ours: Decision
) -> Iterator[Difference]:
    clients_of: dict[tuple[str, _Texts, _Texts], list[str]] = {}
    for client in CLIENTS:
        kube_proxy, bpfsvc = theirs.clients[client], ours.clients[client]
        for what in differing(kube_proxy, bpfsvc):
            sides: tuple[_Texts, _Texts] = (kube_proxy.action,), (bpfsvc.action,)
            if what == "backends":
                sides = _only(kube_proxy.backends, bpfsvc.backends, _backend_text)
            clients_of.setdefault((what, *sides), []).append(client)
    for (what, *of_both), clients in clients_of.items():
        yield Difference(service, frontend, tuple(clients), str(what), *map(tuple, of_both))
    has_backends = any(treatment.backends for treatment in theirs.clients.values())
    if theirs.affinity != ours.affinity and has_backends:
        seconds = (f"{theirs.affinity} s",), (f"{ours.affinity} s",)
        yield Difference(service, frontend, (), "affinity", *seconds)
    if theirs.sources != ours.sources:
        networks = (tuple(map(network_text, decision.sources)) for decision in (theirs, ours))
        yield Difference(service, frontend, (), "sources", *networks)


def _of_addresses(
    theirs: frozenset[bytes] | None, ours: frozenset[bytes] | None
) -> Iterator[Difference]:
    """Yield a difference if NodePorts answer at other addresses of a family that both know."""
    if theirs is None or ours is None:
        return
    for version, wildcard in ANY_NODE_ADDRESS.items():
        kube_proxy = frozenset(address for address in theirs if family(address) == version)
        bpfsvc = frozenset(address for address in ours if family(address) == version)
        if not any(map(is_loopback, kube_proxy)):
            # kube-proxy may serve loopback without a rule, by a process.
            bpfsvc = frozenset(address for address in bpfsvc if not is_loopback(address))
        if kube_proxy and kube_proxy != bpfsvc:
            sides = _only(kube_proxy, bpfsvc, unpack)
            yield Difference("", f"{NODEPORT_TEXTS[wildcard]}:*", (), "addresses", *sides)


def _only(
    theirs: frozenset[_T], ours: frozenset[_T], text: Callable[[_T], str]
) -> tuple[_Texts, _Texts]:
    """Return the texts of what only one side has, sorted."""
    return tuple(sorted(map(text, theirs - ours))), tuple(sorted(map(text, ours - theirs)))


def _backend_text(backend: Place) -> str:
    return "missing" if backend == MISSING else endpoint_text(*backend)
