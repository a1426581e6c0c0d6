"""Who answers on a frontend that several Services name.

Nothing keeps two Services from listing one external IP and port. The Service that sorts first by
namespace and name has it, whatever the order of events, and the next takes over when it lets go,
so every node and every restart decide alike. Beside one owner per frontend only conflicts cost
memory. A change of owner concerns a Service that did not change itself; :meth:`Claims.update`
names it, so that both are written in one go.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.cluster import ServiceKey
from bpfsvc.rows import Frontend, ServiceRows


class Claims:
    """The owner of every frontend, and those in waiting."""

    def __init__(self) -> None:
        self._owner: dict[Frontend, ServiceKey] = {}
        self._waiting: dict[Frontend, set[ServiceKey]] = {}
        self._claimed: dict[ServiceKey, tuple[Frontend, ...]] = {}

    def update(self, key: ServiceKey, wanted: ServiceRows) -> set[ServiceKey]:
        """Note what a Service claims now; give the other Services whose share changed by it."""
        before = self._claimed.get(key, ())
        after = tuple(frontend for rows in wanted.values() for frontend in rows.frontends)
        if before == after:
            return set()
        if after:
            self._claimed[key] = after
        else:
            del self._claimed[key]
        return self._leave(key, set(before) - set(after)) | self._enter(key, set(after))

    def won(self, key: ServiceKey, wanted: ServiceRows) -> ServiceRows:
        """Keep the frontends that are this Service's to answer on; ``update`` comes first."""
        if all(self._owner.get(one) == key for rows in wanted.values() for one in rows.frontends):
            return wanted
        return {
            port: rows._replace(
                frontends={
                    one: policies
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

    def _enter(self, key: ServiceKey, frontends: Iterable[Frontend]) -> set[ServiceKey]:
        displaced = set()
        for frontend in frontends:
            owner = self._owner.setdefault(frontend, key)
            if owner == key:
                continue
            first, second = sorted((owner, key))
            self._owner[frontend] = first
            self._waiting.setdefault(frontend, set()).add(second)
            if second == owner:
                displaced.add(owner)
        return displaced

    def _leave(self, key: ServiceKey, frontends: Iterable[Frontend]) -> set[ServiceKey]:
        promoted = set()
        for frontend in frontends:
            waiting = self._waiting.get(frontend, set())
            waiting.discard(key)
            if self._owner[frontend] == key:
                del self._owner[frontend]
                if waiting:
                    heir = min(waiting)
                    waiting.discard(heir)
                    self._owner[frontend] = heir
                    promoted.add(heir)
            if not waiting:
                self._waiting.pop(frontend, None)
        return promoted
