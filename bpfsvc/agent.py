"""The loop of the agent: something changes, what it touches is planned, the plan is written.

One thread (the caller's) owns the plans and the kernel's Service rows. The source, the interface
monitor and the collector have threads of their own and only put events into its queue or touch
maps nobody else does. The first event of a quiet time is handled at once; those that arrive
meanwhile are handled together next.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable

from bpfsvc import memory
from bpfsvc.announcer import Announcer
from bpfsvc.books import Books
from bpfsvc.cluster import Cluster, ServiceKey
from bpfsvc.collector import Collector
from bpfsvc.config import Config
from bpfsvc.datapath.installation import Installation, install
from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.datapath.source import load
from bpfsvc.errors import MapFull
from bpfsvc.healthcheck import HealthChecks
from bpfsvc.inbox import Happening, Inbox, Stopped
from bpfsvc.lastgood import LastGood
from bpfsvc.lookout import Lookout
from bpfsvc.model import Node as Identity
from bpfsvc.node import Node, addresses
from bpfsvc.problems import Problems
from bpfsvc.programming import Programming
from bpfsvc.servers import Servers
from bpfsvc.settings import families
from bpfsvc.sources import Batch, Source
from bpfsvc.standin import StandIn

_log = logging.getLogger("bpfsvc")

_TICK = 1.0
"""Seconds at most between two looks at the clock."""

_CHECK_SECONDS = 30.0
"""How often attachments are looked at: nobody tells when another program removes them."""


class Agent:
    """One node's agent."""

    def __init__(
        self,
        config: Config,
        source: Source,
        servers: Servers,
        announcer: Announcer,
        doubt: Callable[[], str] = lambda: "",
    ) -> None:
        """``doubt()`` says what speaks against the fast path now, "" for nothing."""
        self._config = config
        self._lookout = Lookout(doubt, _CHECK_SECONDS)
        self._announcer = announcer
        self._servers = servers
        self._health = servers.health
        self._metrics = servers.metrics
        self._source = source
        if not config.manifests:
            self._health.node(False)
        self._events = Inbox()
        self._stop = threading.Event()
        self._health_checks = HealthChecks(lambda: self._health.report()[0], self._complain)
        self._books = Books(
            Cluster(config.node_name, config.address_override),
            config.services(Identity(config.node_name)),
            max_backends=config.sizes.max_backends,
        )
        # Files name all pods that there are; an API server does when it has listed them.
        self._books.cluster.pods_seen = config.manifests is not None
        self._stand_in: StandIn | None = None
        if config.last_good:
            file = LastGood(config.last_good, config.node_name)
            self._stand_in = StandIn(file, self._books.cluster, self._health, self._metrics)
        self._waiting: set[ServiceKey] | None = None
        self._problems = Problems()
        self._network: Network | None = None
        self._node: Node
        self._programming: Programming
        self._collector: Collector | None = None

    def run(self) -> None:
        """Work until :meth:`stop`; what is in the kernel stays there afterwards."""
        began = time.monotonic()
        memory.share_one_heap()
        root = PinRoot(self._config.pin_root)
        root.create()
        lock = root.lock()
        watching = threading.Thread(target=self._watch, name="source", daemon=True)
        monitor = Monitor(self._events.put, self._events.put)
        try:
            self._servers.start()
            self._announcer.started()
            watching.start()
            source = load(self._config.sizes)
            installation = install(root, source, _log.info, self._config.cache)
            self._open(installation)
            self._begin(monitor, installation)
            if self._config.fast_path:
                self._lookout.start()
            self._report_ready(time.monotonic() - began)
            self._loop()
        except Stopped:
            return
        finally:
            self._stop.set()
            self._lookout.stop()
            self._health_checks.stop()
            monitor.stop()
            if self._collector:
                self._collector.stop()
            if self._stand_in:
                self._stand_in.finish()
            self._servers.stop()
            self._announcer.stop()
            if watching.ident is not None:
                watching.join(timeout=1)
            os.close(lock)

    def stop(self) -> None:
        """End :meth:`run` soon; safe to call from a signal handler."""
        self._stop.set()
        self._events.put(None)

    def _complain(self, service: ServiceKey, text: str) -> None:
        _log.error("Service %s/%s: %s", *service, text)
        self._announcer.check_failed(*service, text)

    # -- starting --

    def _watch(self) -> None:
        try:
            for batch in self._source.watch(self._stop):
                self._health.queued()
                self._metrics.queued(batch)
                self._events.put(batch)
                del batch  # the first one names every object
            self._events.put(None)
        except Exception as error:
            # Whatever it is: without a source the agent must not go on as if all were well.
            self._events.put(error)

    def _open(self, installation: Installation) -> None:
        pinned = installation.pinned
        self._node = Node(self._config, installation)
        keep, seconds = self._config.lifetimes, self._config.collect_seconds
        self._collector = collector = Collector(pinned, keep, seconds)
        self._programming = Programming(
            self._books,
            pinned,
            collector,
            self._health,
            self._health_checks,
            metrics=self._metrics,
            with_sockets=self._config.cgroup_root is not None,
        )

    def _begin(self, monitor: Monitor, installation: Installation) -> None:
        """Program everything once, then attach: no packet meets half of the Services."""
        taken = self._take_first(monitor, installation)
        for doubt in families.doubts(self._config, self._books.cluster.node, families.of_machine()):
            _log.warning("%s", doubt)
        self._know_node()
        self._first_sync()
        self._put_to_work(monitor, installation)
        self._tell_applied(taken)
        del taken
        memory.settle()
        self._health.well("start")

    def _put_to_work(self, monitor: Monitor, installation: Installation) -> None:
        """Attach the programs, and follow the interfaces from now on. Once only."""
        if self._follow_again():
            return
        self._node.write_settings(settling=installation.settling)
        self._follow(monitor.start())
        self._node.attach_sockets()
        if installation.settling:
            installation.complete()
            self._node.write_settings()
        installation.complete()
        self._tell_attached()
        assert self._collector is not None
        self._collector.start(_log.warning)
        self._health_checks.start()

    def _take_first(self, monitor: Monitor, installation: Installation) -> list[Batch]:
        """Wait for the first complete picture of the source, or for the one that stands in."""
        taken: list[Batch] = []
        patience = time.monotonic() + self._config.patience_seconds
        waits = self._stand_in is not None
        while True:
            left = max(0.0, patience - time.monotonic()) if waits else _CHECK_SECONDS
            event = self._events.take(left)
            if isinstance(event, Network):
                self._follow(event)
            elif event is not None:
                self._take(event)
                taken.append(event)
                if event.complete:
                    return taken
            else:
                if waits and self._do_without(monitor, installation):
                    return taken
                waits = False
                self._check_attachments()

    def _do_without(self, monitor: Monitor, installation: Installation) -> bool:
        """Make do without the source; tell whether what stands in is a first picture."""
        assert self._stand_in is not None
        held = self._programming.count_held()
        is_picture = self._stand_in.begin(held)
        self._tell_node()
        if held and self._books.cluster.node_seen and not installation.fresh:
            self._know_node()
            self._put_to_work(monitor, installation)
            self._programming.tell(self._books.cluster.service_keys())
            self._health.well("start")
        return is_picture

    def _tell_node(self) -> None:
        """Tell load balancers whether to use this node; from manifests, nobody may know."""
        if self._books.cluster.node_seen:
            self._health.node(not self._books.cluster.node.leaving)

    def _take(self, batch: Batch) -> set[ServiceKey]:
        """Take objects in; give the Services whose rows may be different now."""
        if self._stand_in:
            self._stand_in.answered(batch)
        touched = self._books.cluster.apply(batch.puts, batch.gone, batch.whole)
        self._problems.note(batch.problems)
        self._metrics.unreadable(len(self._problems))
        self._tell_node()
        return touched

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
        tick_at = 0.0
        while not self._stop.is_set():
            self._handle(self._events.drain(_TICK))
            now = time.monotonic()
            if now >= tick_at:
                self._heed_doubt()
                self._health.note("contact", self._source.absence())
                if self._stand_in:
                    self._stand_in.save()
                tick_at = now + _TICK
            if now >= check_at:
                self._check_attachments()
                self._programming.retry_refused()
                self._programming.forget_closed_sockets()
                check_at = now + _CHECK_SECONDS
            if now >= reconcile_at:
                self._reconcile()
                reconcile_at = now + every

    def _handle(self, events: Iterable[Happening]) -> None:
        """Act on events."""
        touched: set[ServiceKey] = set()
        taken: list[Batch] = []
        for event in events:
            if isinstance(event, Network):
                self._follow(event)
            else:
                before = self._books.cluster.node
                touched |= self._take(event)
                taken.append(event)
                if self._books.cluster.node != before:
                    touched |= self._know_node()
                    self._follow_again()
        if touched or (self._waiting is not None and not self._problems):
            self._sync(touched)
        if taken:
            self._programming.tell_service_networks()
            self._programming.tell_opted_out()
            self._tell_applied(taken)

    def _tell_applied(self, batches: list[Batch]) -> None:
        """Tell that what was queued is in the kernel."""
        self._metrics.applied(batches)
        self._health.updated(changes=len(batches))

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
        try:
            self._node.follow(network)
            self._health.well("node")
        except MapFull as error:
            _log.error("not all of this node is known to the programs: %s", error)
            self._health.ill("node", str(error))
        own = addresses(network)
        self._tell_attached()
        nodeports = self._node.nodeports
        self._health_checks.listen_on(
            place for each in (4, 6) for place in nodeports.listening(own, each)
        )

    def _tell_attached(self) -> None:
        self._metrics.attached(len(self._node.attached), self._node.count_sockets())
        lost, never = (", ".join(names) for names in (self._node.lost, self._node.unattached))
        if lost:
            self._health.ill("attachments", f"programs are not attached any more to {lost}")
        else:
            self._health.well("attachments")
        refused = self._node.edge.declined
        reasons = [f"{name} is not served by XDP: {reason}" for name, reason in refused.items()]
        self._health.note("xdp", "; ".join(reasons) or None)
        note = f"programs cannot be attached to {never}" if never else None
        self._health.note("attachments", note)

    def _follow_again(self) -> bool:
        """Write anew what follows from interfaces; False as long as they are not followed."""
        if self._network is None:
            return False
        self._follow(self._network)
        return True

    def _first_sync(self) -> None:
        """Make the kernel agree with the first complete picture, as far as it is one.

        While a file is broken, nobody knows what it held. What an earlier agent programmed then
        stays as it is, until the file is mended or something about that Service changes.
        """
        self._programming.adopt()
        if waiting := self._problems.hidden(self._books.ledger.keys()):
            self._waiting = waiting
            self._programming.sync(set(self._books.cluster.service_keys()) - waiting)
            self._programming.tell(waiting)
        else:
            self._programming.sync_all()
        self._programming.tell_service_networks()
        self._programming.tell_opted_out()

    def _sync(self, touched: set[ServiceKey]) -> None:
        """Bring Services into the kernel; all, when the last of what was hidden is seen."""
        self._programming.sync(touched)
        if self._waiting is not None and not self._problems:
            self._waiting = None
            self._programming.sync_all()

    def _heed_doubt(self) -> None:
        """Lead no packet past somebody who came to guard the node."""
        doubt = self._lookout.seen
        if doubt and self._node.give_up_fast_path():
            _log.warning("--fast-path is not used any more: %s (bpfsvc doctor tells more)", doubt)

    def _check_attachments(self) -> None:
        if self._network is None:
            return
        lost = self._node.check_attachments()
        if lost:
            _log.warning("programs were removed from %s; attaching them again", ", ".join(lost))
            self._metrics.lost(len(lost))
        if not (lost and self._follow_again()):
            self._tell_attached()

    def _reconcile(self) -> None:
        """Compare the kernel with what was written, and mend what somebody else changed."""
        drift = self._programming.reconcile()
        if drift:
            _log.warning("%d rows in the kernel were not as written; mended", drift)
        self._follow_again()
        memory.trim()
