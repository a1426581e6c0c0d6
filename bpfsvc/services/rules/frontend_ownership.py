"""Which Service owns a frontend that several Services name.

A cluster IP is given to one Service by the API server; external IPs and load-balancer addresses
are free text of the Service. So a Service's own cluster IP always wins: otherwise anyone who may
create a Service could get another's traffic. Between equals the oldest Service owns the frontend,
by ``creationTimestamp``: nobody loses an address to a Service that comes later. Those of the same
second are ordered by namespace and name. The order of events does not matter, and the next in order
becomes the owner when one is deleted, so all nodes decide alike, before and after a restart.

Beside one owner per frontend only conflicts and outside frontends cost memory. A change of owner
concerns a Service that did not change itself; :meth:`FrontendOwnership.update` names it, so that
both are written in one plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import TypeVar

from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import Frontend, PortEntries, ServiceEntries

_K = TypeVar("_K")
_V = TypeVar("_V")

_NOTHING_HELD: Mapping[Frontend, Frontend] = {}

_UNKNOWN = 0
"""``created`` of a Service without a timestamp, as in manifests: it counts as the youngest."""


class FrontendOwnership:
    """The owner of every frontend, and the other Services that name it."""

    def __init__(self) -> None:
        self._owner: dict[Frontend, ServiceKey] = {}
        self._waiting: dict[Frontend, set[ServiceKey]] = {}
        self._claimed: dict[ServiceKey, tuple[Frontend, ...]] = {}
        self._foreign: dict[ServiceKey, tuple[Frontend, ...]] = {}
        """The frontends of a Service at addresses that are not its own cluster IPs, if any."""
        self._created: dict[ServiceKey, int] = {}
        self.changes = 0
        """Grows whenever :meth:`lost` returns something else."""

    def update(
        self,
        key: ServiceKey,
        wanted: Iterable[Frontend],
        cluster_ips: Collection[bytes],
        held: Mapping[Frontend, Frontend] = _NOTHING_HELD,
        *,
        created: int = _UNKNOWN,
    ) -> set[ServiceKey]:
        """Set the frontends that a Service names; return the others that get or lose one by it.

        ``cluster_ips`` are the addresses that are the Service's own; ``held`` has the objects that
        are kept of its frontends elsewhere, to keep no copies. ``created``: in Unix seconds.
        """
        before = self._claimed.get(key, ())
        after = tuple([held.get(frontend, frontend) for frontend in wanted])
        foreign = tuple([frontend for frontend in after if frontend.address not in cluster_ips])
        created = created if foreign else _UNKNOWN
        if (before, self._foreign.get(key, ()), self._created.get(key, _UNKNOWN)) == (
            after,
            foreign,
            created,
        ):
            return set()
        _keep(self._claimed, key, after)
        _keep(self._foreign, key, foreign)
        _keep(self._created, key, created)
        claimed = set(after)
        changed: set[ServiceKey] = set()
        for frontend in claimed.union(before):
            changed |= self._settle(frontend, key, claims=frontend in claimed)
        return changed - {key}

    def owned(self, key: ServiceKey, wanted: ServiceEntries) -> ServiceEntries:
        """Return ``wanted`` with only the frontends that the Service owns; call ``update`` first.

        The frontends returned are the objects kept here, so that a caller keeps no copies.
        """
        ours = {frontend: frontend for frontend in self._claimed.get(key, ())}
        return {
            port: PortEntries(
                entries.number,
                entries.backends,
                {
                    ours.get(frontend, frontend): policies
                    for frontend, policies in entries.frontends.items()
                    if self._owner.get(frontend) == key
                },
                entries.extra,
            )
            for port, entries in wanted.items()
        }

    def owner(self, frontend: Frontend) -> ServiceKey | None:
        """Return the Service that owns a frontend."""
        return self._owner.get(frontend)

    def others(self, frontend: Frontend) -> tuple[ServiceKey, ...]:
        """Return, sorted, the Services that name a frontend and do not own it."""
        return tuple(sorted(self._waiting.get(frontend, ())))

    def lost(self) -> dict[Frontend, tuple[ServiceKey, tuple[ServiceKey, ...]]]:
        """Return each frontend that several Services name: its owner and, sorted, the others."""
        return {
            frontend: (self._owner[frontend], tuple(sorted(others)))
            for frontend, others in self._waiting.items()
        }

    def why(self, frontend: Frontend, loser: ServiceKey) -> str:
        """Return why the owner of a frontend has it, and ``loser``, which names it too, has not."""
        owner = self._owner[frontend]
        is_foreign, age, _ = self._rank(owner, frontend)
        if not is_foreign and frontend in self._foreign.get(loser, ()):
            return "it is the cluster IP of that Service"
        return (
            "that Service is older"
            if age < self._rank(loser, frontend)[1]
            else "that Service sorts first"
        )

    def _settle(self, frontend: Frontend, key: ServiceKey, *, claims: bool) -> set[ServiceKey]:
        """Decide anew, now that a Service names a frontend or not; return old and new owner.

        Without any other Service that names it, there is nothing to decide, and nobody is returned.
        """
        before = self._owner.get(frontend)
        if frontend not in self._waiting and before in (None, key):
            _keep(self._owner, frontend, key if claims else None)
            return set()
        claimants = {*self._waiting.get(frontend, ())}
        if before:
            claimants.add(before)
        if claims:
            claimants.add(key)
        else:
            claimants.discard(key)
        after = min(claimants, key=lambda key: self._rank(key, frontend), default=None)
        _keep(self._owner, frontend, after)
        others = claimants - {after}
        # A new owner has waited, or the former owner waits now: then the others change, too.
        if others != self._waiting.get(frontend, set()):
            self.changes += 1
        _keep(self._waiting, frontend, others)
        return {key for key in (before, after) if key} if before != after else set()

    def _rank(self, key: ServiceKey, frontend: Frontend) -> tuple[bool, float, ServiceKey]:
        is_foreign = frontend in self._foreign.get(key, ())
        age = (self._created.get(key) or inf) if is_foreign else 0
        return is_foreign, age, key


def _keep(held: dict[_K, _V], key: _K, value: _V | None) -> None:
    """Keep a value under a key, but nothing empty."""
    if value:
        held[key] = value
    else:
        held.pop(key, None)
