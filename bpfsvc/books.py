"""The agent's books: what is known, who answers where, what is in the kernel; out come plans.

This is the whole control plane between a change and its writing, and it is pure: it meets no
kernel and no clock. Frontends that change hands bring a second Service into the plan of the
first, so that the row is rewritten in place and not deleted behind the new owner's back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bpfsvc.adoption import adopt
from bpfsvc.claims import Claims
from bpfsvc.cluster import Cluster, ServiceKey
from bpfsvc.desired import NodeContext, ServiceConfig, desired
from bpfsvc.diff import plan
from bpfsvc.errors import MapFull
from bpfsvc.ids import Ids
from bpfsvc.plan import BackendRow, FrontendRow, Plan, ServiceName, merge
from bpfsvc.programmed import Ledger
from bpfsvc.rows import PortRows, ServiceRows


class Books:
    """Cluster, claims, ledger and ids, kept in step.

    One plan at a time: after :meth:`plan`, execute it and call :meth:`written`. If executing
    fails midway nobody knows what the kernel holds: call :meth:`adopt` with what it says.
    """

    def __init__(self, cluster: Cluster, config: ServiceConfig, max_backends: int) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        self.claims = Claims()
        self.refused: dict[ServiceKey, MapFull] = {}
        """Services that found no room, in their last good state; every plan tries them again."""
        self._config = config
        self._ids = Ids(max_backends)
        self._strays = Plan()

    def adopt(
        self,
        names: Sequence[ServiceName],
        frontends: Sequence[FrontendRow],
        backends: Sequence[BackendRow],
    ) -> None:
        """Begin from what the kernel holds. The next plan must be :meth:`plan_all`."""
        adopted = adopt(names, frontends, backends, self._ids)
        self.ledger = Ledger()
        self.ledger.settle({one.port: one for one in adopted.programmed})
        self._strays = adopted.strays

    def plan_all(self) -> Plan:
        """Plan for everything: Services known, Services still in the kernel, strays."""
        return self.plan({*self.cluster.service_keys(), *self.ledger.keys()})

    def plan(self, touched: Iterable[ServiceKey]) -> Plan:
        """Plan for the Services touched, and for those that a change of claims drags in."""
        keys = {*touched, *self.refused}
        wanted = {key: self._desired(key) for key in keys}
        dragged: set[ServiceKey] = set()
        for key, rows in wanted.items():
            dragged |= self.claims.update(key, rows)
        wanted |= {key: self._desired(key) for key in dragged - keys}
        return merge([self._strays, *(self._plan_one(key, rows) for key, rows in wanted.items())])

    def written(self, whole: Plan) -> None:
        """Note that a plan was executed to its end."""
        self.ledger.settle(whole.programmed)
        self._ids.free_counters(whole.counters_freed)
        self._strays = Plan()

    def _desired(self, key: ServiceKey) -> ServiceRows:
        node = self.cluster.node
        service, slices = self.cluster.lookup(key)
        return desired(service, slices, NodeContext(node.name, node.zone), self._config)

    def _plan_one(self, key: ServiceKey, wanted: ServiceRows) -> Plan:
        now = self.ledger.of(key)
        try:
            steps = plan(now, self.claims.won(key, wanted), self._ids)
        except MapFull as error:
            # It stays as it is, but for the frontends that others answer on from now on: one
            # still booked here would be deleted later, under the new owner.
            self.refused[key] = error
            kept = {
                port: PortRows(was.number, was.backends(), was.frontends())
                for port, was in now.items()
            }
            return plan(now, self.claims.won(key, kept), self._ids)
        self.refused.pop(key, None)
        return steps
