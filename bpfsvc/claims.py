"""Who answers on a frontend that several Services name.

A cluster IP is given to one Service by the API server; external IPs and load-balancer addresses
are whatever somebody wrote. So a Service's own cluster IP always wins: otherwise anyone who may
create a Service could take over another's traffic. Between equals the Service that sorts first by
namespace and name has the frontend. The order of events does not matter, and the next takes over
when one lets go, so every node and every restart decide alike.

Beside one owner per frontend only conflicts and outside frontends cost memory. A change of owner
concerns a Service that did not change itself; :meth:`Claims.update` names it, so that both are
written in one go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

from bpfsvc.cluster import ServiceKey
from bpfsvc.rows import Frontend, ServiceRows

_K = TypeVar("_K")
_V = TypeVar("_V")

_NOTHING_HELD: Mapping[Frontend, Frontend] = {}


class Claims:
    """The owner of every frontend, and those in waiting."""

    def __init__(self) -> None:
        self._owner: dict[Frontend, ServiceKey] = {}
        self._waiting: dict[Frontend, set[ServiceKey]] = {}
        self._claimed: dict[ServiceKey, tuple[Frontend, ...]] = {}
        self._foreign: dict[ServiceKey, tuple[Frontend, ...]] = {}
        """What a Service claims at addresses that are not its own cluster IPs, if there is any."""

    def update(
        self,
        key: ServiceKey,
        wanted: Iterable[Frontend],
        cluster_ips: Collection[bytes],
        held: Mapping[Frontend, Frontend] = _NOTHING_HELD,
    ) -> set[ServiceKey]:
        """Note what a Service claims now; give the other Services whose share changed by it.

        ``cluster_ips`` are the addresses that are the Service's own; ``held`` are the objects that
        others keep of its frontends, so that no copies are.
        """
        before = self._claimed.get(key, ())
        after = tuple(held.get(one, one) for one in wanted)
        foreign = tuple(one for one in after if one.address not in cluster_ips)
        if before == after and self._foreign.get(key, ()) == foreign:
            return set()
        _keep(self._claimed, key, after)
        _keep(self._foreign, key, foreign)
        claimed = set(after)
        changed: set[ServiceKey] = set()
        for frontend in claimed.union(before):
            changed |= self._settle(frontend, key, claims=frontend in claimed)
        return changed - {key}

    def won(self, key: ServiceKey, wanted: ServiceRows) -> ServiceRows:
        """Keep the frontends that are this Service's to answer on; ``update`` comes first.

        The frontends given are the very objects kept here: whoever keeps them as well keeps no
        copies.
        """
        ours = {one: one for one in self._claimed.get(key, ())}
        return {
            port: rows._replace(
                frontends={
                    ours.get(one, one): policies
                    for one, policies in rows.frontends.items()
                    if self._owner.get(one) == key
                }
            )
            for port, rows in wanted.items()
        }

    def owner(self, frontend: Frontend) -> ServiceKey | None:
        """Give the Service that answers on a frontend."""
        return self._owner.get(frontend)

    def lost(self) -> dict[Frontend, tuple[ServiceKey, tuple[ServiceKey, ...]]]:
        """Give each frontend in dispute: its owner and, sorted, who waits for it."""
        return {
            one: (self._owner[one], tuple(sorted(rivals))) for one, rivals in self._waiting.items()
        }

    def _settle(self, frontend: Frontend, key: ServiceKey, *, claims: bool) -> set[ServiceKey]:
        """Decide anew, now that a Service claims a frontend or not; give old and new owner."""
        before = self._owner.get(frontend)
        claimants = {*self._waiting.get(frontend, ())}
        if before:
            claimants.add(before)
        if claims:
            claimants.add(key)
        else:
            claimants.discard(key)
        after = min(claimants, key=lambda one: self._rank(one, frontend), default=None)
        _keep(self._owner, frontend, after)
        _keep(self._waiting, frontend, claimants - {after})
        return {one for one in (before, after) if one} if before != after else set()

    def _rank(self, key: ServiceKey, frontend: Frontend) -> tuple[bool, ServiceKey]:
        return frontend in self._foreign.get(key, ()), key


def _keep(held: dict[_K, _V], key: _K, value: _V | None) -> None:
    """Hold what is worth holding: nothing empty."""
    if value:
        held[key] = value
    else:
        held.pop(key, None)
