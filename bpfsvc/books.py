"""The agent's books: what is known, who answers where, what is in the kernel; out come plans.

This is the whole control plane between a change and its writing, and it is pure: it meets no
kernel and no clock.

Two things make it more than a loop over Services. Frontends change hands, and then the row must be
rewritten in place, not deleted behind the new owner's back: all claims are settled before the
first row is planned, who takes a frontend over is planned together with who gives it up, and a
frontend that is booked for its owner is never deleted. And ten thousand Services at once would
leave behind a heap several times the size of what is kept, so plans come in parts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from bpfsvc.address import ANY_NODE_ADDRESS_V4, family
from bpfsvc.adoption import adopt
from bpfsvc.claims import Claims
from bpfsvc.cluster import Cluster, ServiceKey
from bpfsvc.desired import answers_at, desired
from bpfsvc.diff import plan
from bpfsvc.errors import MapFull
from bpfsvc.ids import Ids
from bpfsvc.networks import bits_of, contains
from bpfsvc.plan import (
    BackendRow,
    EndpointRow,
    FrontendRow,
    Plan,
    PositionRow,
    RangeRow,
    ServiceName,
    merge,
)
from bpfsvc.programmed import Ledger
from bpfsvc.rows import Frontend, Network, PortRows, ServiceRows
from bpfsvc.surroundings import NodeContext, ServiceConfig

_SOME_V4 = ANY_NODE_ADDRESS_V4
"""Any IPv4 address: those of one kind share the first 96 bits."""


class Books:
    """Cluster, claims, ledger and ids, kept in step.

    ``for plan in books.plans(touched): execute(plan)`` is all there is to do: asking for the next
    plan says that the last one was executed. When a map was full, throw the :class:`MapFull` into
    the generator instead, after the kernel was put back to what the ledger says: the Services of
    the plan are then tried one by one, and those without room are refused.
    """

    def __init__(
        self, cluster: Cluster, config: ServiceConfig, *, max_backends: int, at_once: int = 500
    ) -> None:
        """``max_backends`` bounds the counters, ``at_once`` the Services in one plan."""
        self.cluster = cluster
        self.ledger = Ledger()
        self.claims = Claims()
        self.refused: dict[ServiceKey, MapFull] = {}
        """Services that found no room, in their last good state until they are planned again."""
        self.config = config
        """Settings of rows; who changes them asks for :meth:`plans_for_all` next."""
        self._ids = Ids(max_backends)
        self._at_once = at_once
        self._strays = Plan()

    def adopt(
        self,
        names: Iterable[ServiceName],
        frontends: Iterable[FrontendRow],
        backends: Iterable[BackendRow],
        positions: Iterable[PositionRow] = (),
        ranges: Iterable[RangeRow] = (),
    ) -> None:
        """Begin from what the kernel holds. :meth:`plans_for_all` must be next."""
        known = (self.cluster.lookup(key).service for key in self.cluster.service_keys())
        shared = {address: address for one in known if one for address in one.cluster_ips}
        adopted = adopt(names, frontends, backends, self._ids, positions, ranges, shared)
        self.ledger = Ledger()
        self.ledger.settle({one.port: one for one in adopted.programmed})
        self._strays = adopted.strays

    def plans_for_all(self) -> Generator[Plan, None, None]:
        """Plan for all Services known or still in the kernel, and at last for the strays."""
        yield from self.plans({*self.cluster.service_keys(), *self.ledger.keys()})
        if self._strays:
            yield self._spare(self._strays)
            self._strays = Plan()

    def plans(self, touched: Iterable[ServiceKey]) -> Generator[Plan, None, None]:
        """Plan for the Services touched, and for those that a change of claims drags in."""
        left = set(touched)
        for key in tuple(left):
            left |= self._claim(key)
        single: set[ServiceKey] = set()
        while left or single:
            alone = not left
            keys = self._take(single, 1) if alone else self._take(left, self._at_once)
            whole = self._spare(merge(self._plan(key) for key in keys))
            if not whole.programmed:
                continue
            try:
                yield whole
            except MapFull as error:
                self._ids.free_counters(whole.counters_taken)
                if alone or len(keys) == 1:
                    self.refused |= dict.fromkeys(keys, error)
                else:
                    single |= set(keys)
                continue
            self.ledger.settle(whole.programmed)
            self._ids.free_counters(whole.counters_freed)

    def service_networks(self) -> set[Network]:
        """Give the networks that cluster IPs are taken from, but those that hold all of IPv4."""
        found = (Network(net, bits_of(mask)) for net, mask in self.cluster.service_networks())
        return {one for one in found if family(one.address) == 4 or not contains(one, _SOME_V4)}

    def endpoints(self) -> Iterator[EndpointRow]:
        """Name each backend in the ledger, once for every service port that uses it."""
        for one in self.ledger:
            for place in one.counters():
                yield EndpointRow(*place, one.port.protocol)

    def _take(self, left: set[ServiceKey], at_once: int) -> list[ServiceKey]:
        """Take Services out of ``left`` for one plan, each with those who take over from it."""
        taken: list[ServiceKey] = []
        while left and len(taken) < at_once:
            together = [left.pop()]
            for key in together:
                heirs = left & set(map(self.claims.owner, self.ledger.frontends(key)))
                left -= heirs
                together += heirs
            taken += together
        return taken

    def _spare(self, whole: Plan) -> Plan:
        """Take out the deletion of frontends that are in the kernel for another owner by now."""
        whole.frontends_deleted = [
            one for one in whole.frontends_deleted if not self._is_booked_for_owner(one)
        ]
        return whole

    def _is_booked_for_owner(self, frontend: Frontend) -> bool:
        owner = self.claims.owner(frontend)
        return owner is not None and frontend in self.ledger.frontends(owner)

    def _claim(self, key: ServiceKey) -> set[ServiceKey]:
        service = self.cluster.lookup(key).service
        cluster_ips = service.cluster_ips if service else ()
        held = {one: one for one in self.ledger.frontends(key)}
        return self.claims.update(key, answers_at(service, self.config), cluster_ips, held)

    @property
    def node(self) -> NodeContext:
        """Give what endpoints and clients are compared with."""
        node = self.cluster.node
        return NodeContext(node.name, node.zone, node.addresses)

    def _desired(self, key: ServiceKey) -> ServiceRows:
        service, slices = self.cluster.lookup(key)
        return desired(service, slices, self.node, self.config)

    def _plan(self, key: ServiceKey) -> Plan:
        now = self.ledger.of(key)
        wanted = self.claims.won(key, self._desired(key))
        try:
            steps = plan(now, wanted, self._ids)
        except MapFull as error:
            # It stays as it is, but for the frontends that others answer on from now on: one
            # still booked here would be deleted later, under the new owner.
            self.refused[key] = error
            kept = {
                port: PortRows(was.number, was.backends(), was.frontends(), was.ranges)
                for port, was in now.items()
            }
            return plan(now, self.claims.won(key, kept), self._ids)
        self.refused.pop(key, None)
        return steps
