"""Services on their way into the kernel, and what follows once they are there.

Plans are made by the books and written one by one. When a map is full, what it holds is put right
first, so that the books know what they count on. After the rows come those who are told of them:
UDP clients of backends that ceased to serve, and load balancers that ask for health.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Generator, Iterable

from bpfsvc import rows
from bpfsvc.absence import Absences
from bpfsvc.books import Books
from bpfsvc.cluster import ServiceKey
from bpfsvc.collector import Collector
from bpfsvc.datapath.pins import Pinned
from bpfsvc.datapath.tables import Tables
from bpfsvc.errors import MapFull
from bpfsvc.health import Health
from bpfsvc.healthcheck import HealthChecks
from bpfsvc.localhealth import checks
from bpfsvc.metrics.observer import Observer
from bpfsvc.plan import (
    BackendRow,
    FrontendRow,
    Plan,
    PositionRow,
    RangeRow,
    ServiceName,
)
from bpfsvc.reconciler import repair
from bpfsvc.udpclients import UdpClients

_log = logging.getLogger("bpfsvc")

Plans = Generator[Plan, None, None]


_Held = tuple[
    Iterable[ServiceName],
    Iterable[FrontendRow],
    Iterable[BackendRow],
    Iterable[PositionRow],
    Iterable[RangeRow],
]


class Programming:
    """Writes what the books plan. All of it belongs to one thread."""

    def __init__(
        self,
        books: Books,
        pinned: Pinned,
        collector: Collector,
        health: Health,
        health_checks: HealthChecks,
        *,
        metrics: Observer,
        with_sockets: bool,
    ) -> None:
        """``with_sockets``: sockets of this node are translated, and so may have to be closed."""
        self._books = books
        self._pinned = pinned
        self._tables = Tables(pinned)
        self._collector = collector
        self._health = health
        self._health_checks = health_checks
        self._metrics = metrics
        self._udp_clients = UdpClients(
            books, pinned, collector, health, metrics, with_sockets=with_sockets
        )
        self._absences = Absences()
        self._refused: dict[ServiceKey, str] = {}
        self._service_networks: set[rows.Network] | None = None
        self._opted_out: set[bytes] | None = None

    def adopt(self) -> None:
        """Take over what an earlier agent has left; :meth:`sync_all` or :meth:`sync` is next."""
        self._tables.know_destinations()
        self._books.adopt(*self._held())
        self._udp_clients.adopt()
        self._metrics.opened(self._pinned, self._books.ledger, lambda: self._collector.rows)

    def count_held(self) -> int:
        """Count the Services that the kernel names."""
        return len({name.port[:2] for name in self._tables.names()})

    def sync_all(self) -> None:
        """Make the kernel hold all Services known, and nothing else."""
        began = time.monotonic()
        self._write(self._books.plans_for_all())
        self._follow_up(self._books.cluster.service_keys())
        self._udp_clients.settle()
        self._tell_done(began, full=True)

    def sync(self, touched: set[ServiceKey]) -> None:
        """Make the kernel hold what is known of some Services."""
        began = time.monotonic()
        self._write(self._books.plans(touched))
        self._follow_up(touched)
        if self._udp_clients.is_new:
            self._udp_clients.settle()
        self._tell_done(began, full=False)

    def tell_service_networks(self) -> None:
        """Make known what addresses are nobody's but Services'; their own rows come first."""
        now = self._books.service_networks()
        if now == self._service_networks:
            return
        try:
            self._tables.set_service_networks(now)
        except MapFull as error:
            self._health.ill("networks", str(error))
            return
        self._health.well("networks")
        self._service_networks = now

    def tell_opted_out(self) -> None:
        """Make known which pods of this node want their sockets to be left alone.

        Until the pods have been named, those that an earlier agent knew of still do.
        """
        now = self._books.cluster.opted_out()
        if now == self._opted_out or not (now or self._books.cluster.pods_seen):
            return
        try:
            self._tables.set_opted_out(now)
        except MapFull as error:
            self._health.ill("pods", str(error))
            return
        self._health.well("pods")
        self._opted_out = now

    def forget_closed_sockets(self) -> None:
        """Make room for UDP sockets to come."""
        self._udp_clients.forget_closed()

    def retry_refused(self) -> None:
        """Try again to bring in the Services that found no room."""
        if self._books.refused:
            self._write(self._books.plans(set(self._books.refused)))

    def reconcile(self) -> int:
        """Mend what somebody else changed; return how many rows differed."""
        began = time.monotonic()
        try:
            drift = self._mend()
            self._health.well("reconciliation")
        except MapFull as error:
            # Somebody else's rows take the room; what could be mended is.
            self._health.ill("reconciliation", str(error))
            return 0
        self._metrics.reconciled(time.monotonic() - began, drift)
        return drift

    def _mend(self) -> int:
        """Make the kernel's rows those of the ledger; return how many differed."""
        self._tables.know_destinations()
        plan, drift = repair(self._books.ledger, *self._held())
        self._tables.execute(plan)
        if self._service_networks is not None:
            drift += self._tables.set_service_networks(self._service_networks)
        if self._opted_out is not None:
            drift += self._tables.set_opted_out(self._opted_out)
        drift += self._udp_clients.settle()
        return drift + self._tables.set_endpoints(self._books.endpoints)

    def _held(self) -> _Held:
        tables = self._tables
        return (
            tables.names(),
            tables.frontends(),
            tables.backends(),
            tables.positions(),
            tables.ranges(),
        )

    # -- writing --

    def _write(self, plans: Plans) -> None:
        if self._execute(plans) and self._books.refused:
            self._execute(self._books.plans(set(self._books.refused)))
        self._report_refused()

    def _execute(self, plans: Plans) -> bool:
        """Write plans; tell whether there is more room afterwards."""
        freed = False
        plan = next(plans, None)
        while plan is not None:
            try:
                self._tables.execute(plan)
                self._metrics.written(plan)
                freed |= plan.frees
                plan = next(plans, None)
            except MapFull as error:
                self.reconcile()
                plan = _throw(plans, error)
        return freed

    def _report_refused(self) -> None:
        """Name every Service without room once, and count them in the health report."""
        refused = {key: str(error) for key, error in self._books.refused.items()}
        for key, reason in refused.items():
            if self._refused.get(key) != reason:
                _log.error("Service %s/%s is not up to date in the kernel: %s", *key, reason)
        found_room = self._refused.keys() - refused.keys()
        self._refused = refused
        self._udp_clients.follow(found_room)
        self._metrics.refused(len(refused))
        if not refused:
            self._health.well("maps")
            return
        reason = next(iter(refused.values()))
        self._health.ill("maps", f"{len(refused)} Services are not up to date: {reason}")

    # -- telling --

    def _tell_done(self, began: float, *, full: bool) -> None:
        seconds = time.monotonic() - began
        self._metrics.synced(seconds, full=full, well=not self._books.refused)
        self._metrics.no_local(self._absences.counts())

    def tell(self, touched: Collection[ServiceKey]) -> None:
        """Tell load balancers, and whoever wants metrics, of Services as they are known."""
        cluster, node = self._books.cluster, self._books.node
        self._health_checks.update(
            (key, checks(*cluster.lookup(key), node.name)) for key in touched
        )
        for key in touched:
            self._absences.update(key, *cluster.lookup(key), node)

    def _follow_up(self, touched: Collection[ServiceKey]) -> None:
        self.tell(touched)
        self._udp_clients.follow(touched)


def _throw(plans: Plans, error: MapFull) -> Plan | None:
    """Tell the books that a plan found no room; give the next one."""
    try:
        return plans.throw(error)
    except StopIteration:
        return None
