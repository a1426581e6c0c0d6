"""The names behind the numbers and addresses of events.

The observing thread asks here and reads what the agent's own thread changes. Each value is replaced
as a whole and never changed in place, so a name is at most a moment old.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family, unpack
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.maps.codec import EntryCodec
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.model.events import NO_END, NO_SERVICE, EventEnd, EventService
from bpfsvc.services.cache import Cache
from bpfsvc.services.entries import Frontend, Policies
from bpfsvc.services.plans.registry import FRONTENDS, SERVICES, FrontendEntry
from bpfsvc.services.scheduling.schedulers import RANDOM, Schedule, scheduler_text
from bpfsvc.services.service_map import E, ServiceMap

_SECONDS = 5.0
"""How long a name is kept: an id or an address may get another one."""

_MOST = 65536
"""Addresses that are kept, of whatever clients."""

_NOBODY = bytes(16)

AFFINITY = "session affinity"
"""What chooses the backend of a Service with session affinity, unless the client is new."""


class _Pod(NamedTuple):
    name: str
    node: str


class Names:
    """Names of service ids and addresses; belongs to one thread."""

    def __init__(self, pinned: Pinned, cache: Cache) -> None:
        self._maps: dict[ServiceMap[Any], tuple[EntryCodec[Any], Map]] = {
            of: (EntryCodec(of, pinned.layout.maps[of.name]), pinned.map(of.name))
            for of in (SERVICES, FRONTENDS)
        }
        self._cache = cache
        self._services: dict[int, EventService] = {}
        self._pods: dict[bytes, _Pod] | None = None
        self._rules: dict[tuple[bytes, int, int], str] = {}
        self._owners: dict[bytes, tuple[str, str, str]] = {}
        """By address: its text, its pod, its node."""
        self._forget_at = 0.0

    def refresh(self) -> None:
        """Forget names that may be old; called before some events are named."""
        now = time.monotonic()
        if now >= self._forget_at or len(self._owners) > _MOST:
            self._services.clear()
            self._rules.clear()
            self._owners.clear()
            self._pods = None
            self._forget_at = now + _SECONDS

    def service(self, number: int) -> EventService:
        """Return the service port of an id; one that is called ``#7`` if it has no name."""
        known = self._services.get(number)
        if known is None:
            known = self._services[number] = self._look_up(number)
        return known

    def end(self, address: bytes, port: int) -> EventEnd:
        """Return an end of a connection, with the pod or node that has the address."""
        if address == _NOBODY and not port:
            return NO_END
        known = self._owners.get(address)
        if known is None:
            known = self._owners[address] = self._owner(address)
        text, pod, node = known
        return EventEnd(text, port, pod, node)

    def has_frontend(self, address: bytes, port: int, protocol: int) -> bool:
        """True if a Service answers at an address and port, or at this port of the node."""
        return self._frontend(address, port, protocol) is not None

    def chosen_by(self, address: bytes, port: int, protocol: int) -> str:
        """Return what chooses a backend for clients of a frontend; empty: it is random."""
        key = address, port, protocol
        known = self._rules.get(key)
        if known is None:
            entry = self._frontend(*key)
            known = self._rules[key] = _rule(entry.policies) if entry else ""
        return known

    def _frontend(self, address: bytes, port: int, protocol: int) -> FrontendEntry | None:
        wildcard = ANY_NODE_ADDRESS_V4 if family(address) == 4 else ANY_NODE_ADDRESS_V6
        return self._entry(FRONTENDS, Frontend(address, port, protocol)) or self._entry(
            FRONTENDS, Frontend(wildcard, port, protocol)
        )

    def _look_up(self, number: int) -> EventService:
        if not number:
            return NO_SERVICE
        entry = self._entry(SERVICES, number)
        if entry is None:
            return EventService("", f"#{number}", "")
        port = entry.port
        return EventService(port.namespace, port.name, port.port_name or str(entry.number))

    def _entry(self, of: ServiceMap[E], key: object) -> E | None:
        """Return the entry of a key, None if there is none."""
        codec, table = self._maps[of]
        raw_key = codec.encode_key(key)
        raw = table.lookup(raw_key)
        return None if raw is None else next(codec.decode([(raw_key, raw)]))

    def _owner(self, address: bytes) -> tuple[str, str, str]:
        if address == _NOBODY:
            return "", "", ""
        if self._pods is None:
            self._pods = _pods(self._cache)
        node = self._cache.node
        if address in node.addresses:
            return unpack(address), "", node.name
        return unpack(address), *self._pods.get(address, _Pod("", ""))


def _rule(policies: Policies) -> str:
    """Return what chooses a backend by these policies."""
    if policies.affinity_seconds:
        return AFFINITY
    places = max(policy.table for policy in policies.by_class)
    scheduler = scheduler_text(Schedule(policies.schedule).name.lower(), places)
    return "" if scheduler == RANDOM.name else scheduler


def _pods(cache: Cache) -> dict[bytes, _Pod]:
    """Return the pods that are endpoints, by address; of an address with several, only the node."""
    pods: dict[bytes, _Pod] = {}
    for _, slices in cache.all_known():
        for part in slices:
            names = part.pod_names()
            for index, (address, traits) in enumerate(part.endpoints()):
                name = f"{part.namespace}/{names[index]}" if names and names[index] else ""
                known = pods.get(address)
                if known is not None and name and known.name not in ("", name):
                    name = ""  # on the host's network
                elif known is not None and not name:
                    continue
                pods[address] = _Pod(name, traits.node)
    return pods
