"""From changed Services to plans: objects known, owners of frontends, and what the kernel holds.

This is the whole control plane between a change and its writing, and it is pure: it uses no
kernel and no clock. Callers hand in the time.

Two things make it more than a loop over Services. First, a frontend may get another owner. The
entry must then be replaced, not deleted after the new owner has put it. So all owners are known
before the first entry is planned, a Service that gets a frontend is planned together with the
Service that loses it, and a frontend that is applied for its owner is never deleted. Second, a plan
for ten thousand Services would leave behind a heap several times the size of the applied state. So
a plan has at most 500 Services.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, family
from bpfsvc.base.errors import MapFull
from bpfsvc.base.networks import Network, bits_of, contains
from bpfsvc.services.cache import Cache, ServiceKey
from bpfsvc.services.entries import Frontend, PortEntries
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.diff import add_changes
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.plans.plan import Plan, merge_deletes
from bpfsvc.services.plans.registry import FRONTENDS, MAPS, SERVICES
from bpfsvc.services.plans.restore import restore
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.desired import ServicePorts, frontends, service_ports
from bpfsvc.services.rules.frontend_ownership import FrontendOwnership
from bpfsvc.services.rules.view import EndpointSummary, ServiceView, evaluate
from bpfsvc.services.scheduling.annotations import Scheduling
from bpfsvc.services.scheduling.in_force import Schedulings
from bpfsvc.services.service_map import Read

_SOME_V4 = ANY_NODE_ADDRESS_V4
"""Any IPv4 address: all of them share the first 96 bits."""

Write = Callable[[Plan], None]
"""Executes a plan in the kernel; raises :class:`MapFull` when the kernel is as before the plan."""


class Synced(NamedTuple):
    """What a sync did.

    * ``freed``: the kernel has more room than before.
    * ``summaries``: the summary of each Service that was planned.
    """

    freed: bool
    summaries: Mapping[ServiceKey, EndpointSummary]


class Planner:
    """The cache of objects, the owners of frontends, the applied state and the ids, kept in step.

    :meth:`sync` makes plans and hands each to ``write``; a plan counts as applied when that
    returns. If a map is full, ``write`` puts the kernel back to the applied state and raises
    :class:`MapFull`. The Services of the plan are then tried one by one, and Services without room
    are refused.
    """

    def __init__(
        self, cache: Cache, config: ServiceConfig, *, max_backends: int, at_once: int = 500
    ) -> None:
        """``max_backends`` bounds the counters, ``at_once`` the Services in one plan."""
        self.cache = cache
        self.applied_state = AppliedState()
        self.ownership = FrontendOwnership()
        self.schedulings = Schedulings()
        self.refused: dict[ServiceKey, MapFull] = {}
        """Services without room in a map: the kernel holds what was applied of them before."""
        self.config = config
        """Settings that all entries depend on; after a change, call :meth:`sync_all`."""
        self.held_back: Collection[ServiceKey] = ()
        """Services that no sync touches: all entries stay as an earlier agent wrote them."""
        self._ids = Ids(max_backends)
        self._at_once = at_once
        self._strays: dict[ServiceKey | None, Plan] = {}
        self._lacks: dict[str, tuple[int, MapFull]] = {}
        """Maps that had no room for so many entries, since room was freed last."""

    def restore(self, read: Read) -> None:
        """Begin from what the kernel holds. :meth:`sync_all` must be next."""
        services = (self.cache.lookup(key).service for key in self.cache.service_keys())
        shared = {
            address: address for service in services if service for address in service.cluster_ips
        }
        restored = restore(read, self._ids, shared)
        self.applied_state = AppliedState()
        self.applied_state.update({state.port: state for state in restored.applied})
        self._strays = dict(restored.strays_of)

    def restored_keys(self) -> set[ServiceKey]:
        """Return the Services that have entries in the kernel, complete or not."""
        return {key for key in (*self.applied_state.keys(), *self._strays) if key}

    def spared_ids(self) -> set[int]:
        """Return the service ids of Services held back that have strays: all entries stay."""
        spared: set[int] = set()
        for key, strays in self._strays.items():
            if key is not None and key in self.held_back:
                spared.update(strays.deletes(SERVICES))
                spared.update(state.service_id for state in self.applied_state.of(key).values())
        return spared

    def has_backends(self, key: ServiceKey) -> bool:
        """True if the kernel has a backend for a Service."""
        return any(state.size for state in self.applied_state.of(key).values())

    def sync_all(self, now: float, write: Write) -> Synced:
        """Write all Services known or still in the kernel, and at last delete the strays."""
        return self.sync({*self.cache.service_keys(), *self.applied_state.keys()}, now, write)

    def sync(self, touched: Iterable[ServiceKey], now: float, write: Write) -> Synced:
        """Write the Services touched, and those that get or lose a frontend by it.

        ``now``: seconds of a monotonic clock.
        """
        freed, summaries = self._sync(set(touched).difference(self.held_back), now, write)
        return Synced(freed | self._delete_strays(write), summaries)

    def _delete_strays(self, write: Write) -> bool:
        """Delete the strays of Services that are not held back; return True if that frees room."""
        deleted = [key for key in self._strays if key not in self.held_back]
        if not deleted:
            return False
        strays = self._keep_owned(merge_deletes(self._strays.pop(key) for key in deleted))
        write(self._keep_counting(strays))
        return strays.frees

    def _sync(self, left: set[ServiceKey], now: float, write: Write) -> Synced:
        freed = False
        self._lacks.clear()
        summaries: dict[ServiceKey, EndpointSummary] = {}
        ports: dict[ServiceKey, ServicePorts] = {}
        for key in tuple(left):
            ports[key] = service_ports(self.cache.lookup(key).service, self.config)
            left |= self._set_claims(key, ports[key])
        one_by_one: set[ServiceKey] = set()
        while left or one_by_one:
            alone = not left
            keys = self._take(one_by_one, 1) if alone else self._take(left, self._at_once)
            plan = Plan()
            for key in keys:
                summaries[key] = self._add(plan, key, now, ports.get(key))
            self._keep_owned(plan.keep_moved())
            if not plan.applied:
                continue
            alone = alone or len(keys) == 1
            try:
                self._write(plan, keys, write, alone=alone)
            except MapFull as error:
                self._ids.free_counters(plan.counters_taken)
                if alone:
                    self.refused |= dict.fromkeys(keys, error)
                else:
                    one_by_one |= set(keys)
                continue
            self.applied_state.update(plan.applied)
            self._ids.free_counters(plan.counters_freed)
            if plan.frees:
                freed = True
                self._lacks.clear()
            for key in keys:
                ports.pop(key, None)
        return Synced(freed, summaries)

    def _write(self, plan: Plan, keys: Iterable[ServiceKey], write: Write, *, alone: bool) -> None:
        """Write a plan, unless it is known that a map has no room for it.

        A map that is full refuses many Services, and after each the kernel is put back.
        """
        is_new = alone and not any(map(self.applied_state.of, keys))
        needs = {
            service_map.name: len(entries)
            for service_map, entries in plan.put_phases()
            if is_new and not service_map.counted
        }
        for name, (lacked, error) in self._lacks.items():
            if needs.get(name, 0) >= lacked:
                raise MapFull(error.message, error.hint, name)
        try:
            write(plan)
        except MapFull as error:
            if needs.get(error.map_name):
                self._lacks[error.map_name] = needs[error.map_name], error
            raise

    def service_networks(self) -> set[Network]:
        """Return the networks that cluster IPs are taken from, but those that hold all of IPv4."""
        networks = (Network(net, bits_of(mask)) for net, mask in self.cache.service_networks())
        return {
            network
            for network in networks
            if family(network.address) == 4 or not contains(network, _SOME_V4)
        }

    def _take(self, left: set[ServiceKey], at_once: int) -> list[ServiceKey]:
        """Take Services out of ``left`` for one plan, each with the new owners of its frontends."""
        taken: list[ServiceKey] = []
        while left and len(taken) < at_once:
            together = [left.pop()]
            for key in together:
                if held := self.applied_state.frontends(key):
                    new_owners = left & set(map(self.ownership.owner, held))
                    left -= new_owners
                    together += new_owners
            taken += together
        return taken

    def _keep_owned(self, plan: Plan) -> Plan:
        """Do not delete frontends that are in the kernel for another owner by now."""
        deleted = plan.deletes(FRONTENDS)
        deleted[:] = [frontend for frontend in deleted if not self._is_applied_for_owner(frontend)]
        return plan

    def _keep_counting(self, strays: Plan) -> Plan:
        """Do not delete counters that a service port uses again."""
        for service_map in MAPS:
            if service_map.put_once and (deleted := strays.deletes(service_map)):
                needed = {
                    service_map.key(entry)
                    for state in self.applied_state
                    for entry in service_map.entries(state)
                }
                deleted[:] = [key for key in deleted if key not in needed]
        return strays

    def _is_applied_for_owner(self, frontend: Frontend) -> bool:
        owner = self.ownership.owner(frontend)
        return owner is not None and frontend in self.applied_state.frontends(owner)

    def _set_claims(self, key: ServiceKey, ports: ServicePorts) -> set[ServiceKey]:
        """Register the frontends of a Service; return the Services that get or lose one by it."""
        service = self.cache.lookup(key).service
        if service is None:
            return self.ownership.update(key, (), ())
        held = {frontend: frontend for frontend in self.applied_state.frontends(key)}
        return self.ownership.update(
            key,
            frontends(ports),
            service.cluster_ips,
            held,
            created=service.created,
        )

    @property
    def node(self) -> NodeContext:
        """The node that endpoints and clients are compared with."""
        node = self.cache.node
        return NodeContext(node.name, node.zone, node.addresses)

    def summary(self, key: ServiceKey) -> EndpointSummary:
        """Return the summary of a Service that is not planned now: nothing is remembered."""
        return self._evaluate(key, self.schedulings.in_force(key)).summary

    def _evaluate(
        self,
        key: ServiceKey,
        scheduling: Scheduling,
        ports: ServicePorts | None = None,
    ) -> ServiceView:
        return evaluate(*self.cache.lookup(key), self.node, self.config, scheduling, ports)

    def _add(
        self, plan: Plan, key: ServiceKey, now: float, ports: ServicePorts | None
    ) -> EndpointSummary:
        """Plan the changes of a Service; return its summary."""
        before = self.applied_state.of(key)
        scheduling = self.schedulings.read(key, *self.cache.lookup(key), now)
        entries, summary = self._evaluate(key, scheduling, ports)
        try:
            add_changes(plan, before, self.ownership.owned(key, entries), self._ids)
            self.refused.pop(key, None)
        except MapFull as error:
            # It stays as it is, but for the frontends that are another Service's from now on: one
            # that counted as applied here would be deleted later, under the new owner.
            self.refused[key] = error
            kept = {
                port: PortEntries(was.number, was.backends(), was.frontends(), was.extra)
                for port, was in before.items()
            }
            add_changes(plan, before, self.ownership.owned(key, kept), self._ids)
        return summary
