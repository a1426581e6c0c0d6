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
from collections.abc import Iterable

from bpfsvc import memory
from bpfsvc.books import Books
from bpfsvc.cluster import Cluster, ServiceKey
from bpfsvc.collector import Collector
from bpfsvc.config import Config
from bpfsvc.datapath.installation import Installation, install
from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.datapath.source import load
from bpfsvc.datapath.tables import Tables
from bpfsvc.errors import BpfsvcError
from bpfsvc.health import Health, HealthServer
from bpfsvc.healthcheck import HealthChecks
from bpfsvc.model import Node as Identity
from bpfsvc.node import Node, addresses
from bpfsvc.programming import Programming
from bpfsvc.sources import Batch, Problem, Source

_log = logging.getLogger("bpfsvc")

Event = Batch | Network | BpfsvcError | None
"""Objects, interfaces, the end of the source (None or why), in the order of arrival."""

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
        self._waiting: set[ServiceKey] = set()
        self._problems: dict[str, Problem] = {}
        self._node: Node
        self._programming: Programming
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
        self._node = Node(self._config, installation)
        self._collector = Collector(pinned, self._config.lifetimes, self._config.collect_seconds)
        self._programming = Programming(
            self._books,
            Tables(pinned),
            self._collector,
            self._health,
            self._health_checks,
            with_sockets=self._config.cgroup_root is not None,
        )

    def _begin(self, monitor: Monitor, installation: Installation) -> None:
        """Program everything once, then attach: no packet meets half of the Services."""
        self._take_first()
        self._know_node()
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
                self._programming.retry_refused()
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
        self._programming.tell_service_networks()
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
        self._programming.adopt()
        self._waiting = self._hidden()
        if self._waiting:
            self._programming.sync(set(self._books.cluster.service_keys()) - self._waiting)
        else:
            self._programming.sync_all()
        self._programming.tell_service_networks()

    def _sync(self, touched: set[ServiceKey]) -> None:
        """Bring Services into the kernel."""
        self._waiting -= touched
        self._programming.sync(touched)
        if self._waiting and not self._problems:
            self._waiting.clear()
            self._programming.remove_leftovers()

    def _hidden(self) -> set[ServiceKey]:
        """Give the Services in the kernel of which nobody knows whether they still exist."""
        in_kernel = set(self._books.ledger.keys())
        hidden: set[ServiceKey] = set()
        for problem in self._problems.values():
            if problem.key is None:
                return in_kernel
            namespace = problem.key.namespace
            hidden |= {key for key in in_kernel if key[0] == namespace}
        return hidden

    def _note_problems(self, batch: Batch) -> None:
        """Log everything broken once, and that it is mended."""
        now = {str(problem): problem for problem in batch.problems}
        for text in sorted(now.keys() - self._problems.keys()):
            _log.error("%s; the last good state stays in force", text)
        for text in sorted(self._problems.keys() - now.keys()):
            _log.info("mended: %s", text)
        self._problems = now

    def _check_attachments(self) -> None:
        lost = self._node.check_attachments()
        if lost:
            _log.warning("programs were removed from %s; attaching them again", ", ".join(lost))
            self._follow(self._network)

    def _reconcile(self) -> None:
        """Compare the kernel with what was written, and mend what somebody else changed."""
        drift = self._programming.mend()
        if drift:
            _log.warning("%d rows in the kernel were not as written; mended", drift)
        self._follow(self._network)
        memory.trim()
