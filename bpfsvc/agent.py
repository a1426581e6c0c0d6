"""The loop of the agent: something changes, what it touches is planned, the plan is written.

One thread (the caller's) owns the plans and the kernel's Service rows. The source, the interface
monitor and the collector have threads of their own and only put events into its queue or touch
maps nobody else does. The first event of a quiet time is handled at once; those that arrive
meanwhile are handled together next.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Generator, Iterable

from bpfsvc import memory, rows
from bpfsvc.books import Books
from bpfsvc.cluster import Cluster, ServiceKey
from bpfsvc.collector import Collector
from bpfsvc.config import Config
from bpfsvc.datapath.installation import Installation, install
from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.datapath.sockdiag import destroy_udp
from bpfsvc.datapath.source import load
from bpfsvc.datapath.tables import Tables
from bpfsvc.errors import BpfsvcError, MapFull
from bpfsvc.health import Health, HealthServer
from bpfsvc.healthcheck import HealthChecks
from bpfsvc.localhealth import checks
from bpfsvc.model import Node as Identity
from bpfsvc.node import Node, addresses
from bpfsvc.plan import Plan
from bpfsvc.reconciler import repair
from bpfsvc.serving import Serving
from bpfsvc.sources import Batch, Source

_log = logging.getLogger("bpfsvc")

Event = Batch | Network | BpfsvcError | None
"""Objects, interfaces, the end of the source (None or why), in the order of arrival."""

Plans = Generator[Plan, None, None]

_TICK = 1.0
"""Seconds at most between two looks at the clock."""

_CHECK_SECONDS = 30.0
"""How often attachments are looked at: nobody tells when another program removes them."""


class _Stopped(Exception):
    """The agent was asked to end before it had begun."""


class Agent:
    """One node's agent."""

    def __init__(self, config: Config, source: Source) -> None:
        self._config = config
        self._source = source
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._health = Health()
        self._health_checks = HealthChecks(lambda: self._health.report()[0], _log.error)
        self._books = Books(
            Cluster(config.node_name),
            config.services(Identity(config.node_name)),
            max_backends=config.sizes.max_backends,
        )
        self._refused: dict[ServiceKey, str] = {}
        self._waiting: set[ServiceKey] = set()
        self._serving = Serving()
        self._problems: set[str] = set()
        self._service_networks: set[rows.Network] = set()
        self._tables: Tables
        self._node: Node
        self._collector: Collector

    def run(self) -> None:
        """Work until :meth:`stop`; what is in the kernel stays there afterwards."""
        began = time.monotonic()
        memory.share_one_heap()
        root = PinRoot(self._config.pin_root)
        root.create()
        lock = root.lock()
        server = HealthServer(self._config.healthz, self._health) if self._config.healthz else None
        watching = threading.Thread(target=self._watch, name="source", daemon=True)
        watching.start()
        if server:
            server.start()
        monitor = Monitor(self._events.put)
        try:
            installation = install(root, load(self._config.sizes), _log.info)
            self._open(installation)
            self._begin(monitor, installation)
            self._collector.start(_log.warning)
            self._health_checks.start()
            self._report_ready(time.monotonic() - began)
            self._loop()
        except _Stopped:
            return
        finally:
            self._stop.set()
            self._health_checks.stop()
            monitor.stop()
            if hasattr(self, "_collector"):
                self._collector.stop()
            if server:
                server.stop()
            watching.join(timeout=1)
            os.close(lock)

    def stop(self) -> None:
        """End :meth:`run` soon; safe to call from a signal handler."""
        self._stop.set()
        self._events.put(None)

    # -- starting --

    def _watch(self) -> None:
        try:
            for batch in self._source.watch(self._stop):
                self._events.put(batch)
            self._events.put(None)
        except BpfsvcError as error:
            self._events.put(error)

    def _open(self, installation: Installation) -> None:
        pinned = installation.pinned
        self._tables = Tables(pinned)
        self._node = Node(self._config, installation)
        self._collector = Collector(pinned, self._config.lifetimes, self._config.collect_seconds)

    def _begin(self, monitor: Monitor, installation: Installation) -> None:
        """Program everything once, then attach: no packet meets half of the Services."""
        self._take_first()
        self._know_node()
        self._books.adopt(
            self._tables.names(),
            self._tables.frontends(),
            self._tables.backends(),
            self._tables.positions(),
            self._tables.ranges(),
        )
        self._first_sync()
        self._node.write_settings(settling=installation.settling)
        self._follow(monitor.start())
        self._node.attach_sockets()
        if installation.settling:
            installation.complete()
            self._node.write_settings()
        installation.complete()
        memory.settle()
        self._health.well("start")

    def _take_first(self) -> None:
        """Wait for the first complete picture of the source; interfaces come later."""
        while True:
            event = self._events.get()
            if event is None:
                raise _Stopped
            if isinstance(event, BpfsvcError):
                raise event
            if isinstance(event, Batch):
                self._books.cluster.apply(event.puts, event.gone)
                self._note_problems(event)
                if event.complete:
                    return

    def _report_ready(self, seconds: float) -> None:
        services = len(self._books.cluster.service_keys())
        _log.info(
            "ready: %d Services in the kernel after %.2f s; attached to %s",
            services,
            seconds,
            ", ".join(self._node.attached) or "no interface",
        )

    # -- working --

    def _loop(self) -> None:
        every = self._config.reconcile_seconds
        reconcile_at = time.monotonic() + every
        check_at = time.monotonic() + _CHECK_SECONDS
        while not self._stop.is_set():
            if not self._handle(self._drain(_TICK)):
                return
            now = time.monotonic()
            if now >= check_at:
                self._check_attachments()
                self._retry_refused()
                check_at = now + _CHECK_SECONDS
            if now >= reconcile_at:
                self._reconcile()
                reconcile_at = now + every

    def _handle(self, events: Iterable[Event]) -> bool:
        """Act on events; False when the agent is to end."""
        touched: set[ServiceKey] = set()
        for event in events:
            if event is None:
                return False
            if isinstance(event, BpfsvcError):
                raise event
            if isinstance(event, Network):
                self._follow(event)
            else:
                before = self._books.cluster.node
                touched |= self._books.cluster.apply(event.puts, event.gone)
                self._note_problems(event)
                if self._books.cluster.node != before:
                    touched |= self._know_node()
                    self._follow(self._network)
        if touched or (self._waiting and not self._problems):
            self._sync(touched)
        self._tell_service_networks()
        return True

    def _know_node(self) -> set[ServiceKey]:
        """Take in what the Node object says; give the Services whose rows depend on it."""
        identity = self._books.cluster.node
        self._node.know(identity)
        config = self._config.services(identity)
        if not (config.detector_v4 or config.detector_v6):
            mode = self._config.detection.mode
            _log.warning("no range of pods is known (%s): pods are taken for strangers", mode)
        if config == self._books.config:
            return set()
        self._books.config = config
        return set(self._books.cluster.service_keys())

    def _follow(self, network: Network) -> None:
        self._network = network
        self._node.follow(network)
        own = addresses(network)
        nodeports = self._node.nodeports
        self._health_checks.listen_on(
            place for each in (4, 6) for place in nodeports.listening(own, each)
        )

    def _tell_service_networks(self) -> None:
        """Make known what addresses are nobody's but Services'; their own rows come first."""
        now = self._books.service_networks()
        if now != self._service_networks:
            self._tables.set_service_networks(now)
            self._service_networks = now

    def _drain(self, seconds: float) -> list[Event]:
        """Wait for an event, and take all that are there."""
        try:
            events = [self._events.get(timeout=seconds)]
        except queue.Empty:
            return []
        while True:
            try:
                events.append(self._events.get_nowait())
            except queue.Empty:
                return events

    def _first_sync(self) -> None:
        """Make the kernel agree with the first complete picture, as far as it is one.

        While a file is broken, nobody knows what it held. What an earlier agent programmed then
        stays as it is, until the file is mended or something about that Service changes.
        """
        if self._problems:
            self._waiting = set(self._books.ledger.keys())
            self._sync(set(self._books.cluster.service_keys()) - self._waiting)
        else:
            self._write(self._books.plans_for_all())
            self._check(self._books.cluster.service_keys())
            self._forget_stale(self._books.cluster.service_keys())
        self._service_networks = self._books.service_networks()
        self._tables.set_service_networks(self._service_networks)

    def _sync(self, touched: set[ServiceKey]) -> None:
        """Bring Services into the kernel."""
        self._waiting -= touched
        self._write(self._books.plans(touched))
        self._check(touched)
        self._forget_stale(touched)
        if self._waiting and not self._problems:
            self._waiting.clear()
            self._write(self._books.plans_for_all())

    def _forget_stale(self, touched: Iterable[ServiceKey]) -> None:
        """Let UDP clients go whose backends ceased to serve; see :mod:`bpfsvc.serving`."""
        changes = [
            change
            for key in touched
            for change in self._serving.changes(key, *self._books.cluster.lookup(key))
        ]
        ids = {
            port: one.service_id
            for change in changes
            for port, one in self._books.ledger.of(change.port[:2]).items()
        }
        self._collector.forget_udp(
            {ids[each.port]: each.serving for each in changes if each.port in ids}
        )
        gone = {
            (place, ids[change.port])
            for change in changes
            if change.port in ids
            for place in change.gone
        }
        if gone and self._config.cgroup_root:
            destroy_udp(lambda place, cookie: (place, self._tables.socket_service(cookie)) in gone)

    def _check(self, touched: Iterable[ServiceKey]) -> None:
        """Let load balancers know how many endpoints Services have here."""
        cluster = self._books.cluster
        self._health_checks.update(
            (key, checks(*cluster.lookup(key), cluster.node.name)) for key in touched
        )

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
                freed |= plan.frees
                plan = next(plans, None)
            except MapFull as error:
                self._mend()
                plan = _throw(plans, error)
        return freed

    def _retry_refused(self) -> None:
        if self._books.refused:
            self._write(self._books.plans(set(self._books.refused)))

    def _report_refused(self) -> None:
        """Name every Service without room once, and count them in the health report."""
        refused = {key: str(error) for key, error in self._books.refused.items()}
        for key, reason in refused.items():
            if self._refused.get(key) != reason:
                _log.error("Service %s/%s is not up to date in the kernel: %s", *key, reason)
        self._refused = refused
        if not refused:
            self._health.well("maps")
            return
        reason = next(iter(refused.values()))
        self._health.ill("maps", f"{len(refused)} Services are not up to date: {reason}")

    def _note_problems(self, batch: Batch) -> None:
        """Log every broken file once, and that it is mended."""
        now = {str(problem) for problem in batch.problems}
        for text in sorted(now - self._problems):
            _log.error("%s; the last good state stays in force", text)
        for text in sorted(self._problems - now):
            _log.info("mended: %s", text)
        self._problems = now

    def _check_attachments(self) -> None:
        lost = self._node.check_attachments()
        if lost:
            _log.warning("programs were removed from %s; attaching them again", ", ".join(lost))
            self._follow(self._network)

    def _reconcile(self) -> None:
        """Compare the kernel with what was written, and mend what somebody else changed."""
        drift = self._mend()
        if drift:
            _log.warning("%d rows in the kernel were not as written; mended", drift)
        self._follow(self._network)
        memory.trim()

    def _mend(self) -> int:
        """Make the kernel's rows those of the ledger; return how many differed."""
        plan, drift = repair(
            self._books.ledger,
            self._tables.names(),
            self._tables.frontends(),
            self._tables.backends(),
            self._tables.positions(),
            self._tables.ranges(),
        )
        self._tables.execute(plan)
        drift += self._tables.set_service_networks(self._service_networks)
        return drift + self._tables.set_endpoints(self._books.endpoints)


def _throw(plans: Plans, error: MapFull) -> Plan | None:
    """Tell the books that a plan found no room; give the next one."""
    try:
        return plans.throw(error)
    except StopIteration:
        return None
