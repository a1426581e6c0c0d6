"""The agent of shadow mode: it follows objects, interfaces and netfilter, and writes nothing.

No program is loaded, nothing is attached, no sysctl is set, and no port of kube-proxy is used. The
planner plans as always; its plans are noted and not written. A connection is compared two seconds
after it was seen, as kube-proxy may have heard of a change before this agent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

from bpfsvc.agent.objects.event_queue import Event, EventQueue, Stopped
from bpfsvc.agent.objects.intake import ObjectIntake
from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.shadow_flows import FlowReader
from bpfsvc.agent.start_log import log_shadow_start
from bpfsvc.base.networks import Network, bits_of
from bpfsvc.base.texts import count_text
from bpfsvc.config.bpfsvc_v1alpha1 import MOST_ENTRIES
from bpfsvc.config.config import Config
from bpfsvc.datapath.netlink.devices import Interfaces, addresses
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.http.healthz import Health, rfc3339
from bpfsvc.http.shadow_server import shadow_server
from bpfsvc.kube.event_recorder import NullEventRecorder
from bpfsvc.kube.source import Batch, Source
from bpfsvc.metrics.observer import Observer
from bpfsvc.metrics.shadow import ShadowCounts, ShadowMetrics
from bpfsvc.migration.kube_proxy.running import find_kube_proxy
from bpfsvc.migration.shadow.comparison import Comparer
from bpfsvc.migration.shadow.flow import Flow
from bpfsvc.migration.shadow.history import History
from bpfsvc.migration.shadow.node_view import NodeView
from bpfsvc.migration.shadow.tally import Tally, Totals
from bpfsvc.services.cache import Cache, ServiceKey
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.nodeport_addresses import LOOPBACK, resolve

_TICK = 0.2
"""Seconds at most between two looks at connections."""

_LATER = 2.0
"""Seconds from a connection to its comparison."""

_log = logging.getLogger("bpfsvc")


class ShadowSettings(NamedTuple):
    """How connections are compared.

    * ``tolerance``: seconds that kube-proxy and this agent may differ after a change.
    * ``limit``: seconds to compare for; None: until it is stopped.
    * ``address``: where to serve; None: nowhere.
    """

    tolerance: float
    limit: float | None
    address: tuple[str, int] | None


class ShadowAgent:
    """One node's agent in shadow mode."""

    def __init__(self, config: Config, source: Source, settings: ShadowSettings) -> None:
        self._config = config
        self._source = source
        self._settings = settings
        self._events = EventQueue()
        self._stop = threading.Event()
        self._health = Health(2 * config.sync_seconds)
        self._cache = Cache(config.node_name, config.address_override)
        self._intake = ObjectIntake(
            self._cache,
            ParseErrors(),
            None,
            self._health,
            Observer(),
            Reports(NullEventRecorder(), self._health),
        )
        self._planner = Planner(
            self._cache, config.services(self._cache.node), max_backends=MOST_ENTRIES
        )
        self._tally = Tally()
        self._network: Interfaces
        self._history: History
        self._comparer: Comparer
        self._pending: deque[tuple[float, Flow]] = deque()
        self._since: int | None = None

    def run(self) -> Totals:
        """Compare until the limit or :meth:`stop`; return what was counted."""
        log_shadow_start(self._config)
        with ExitStack() as ending, suppress(Stopped):
            reader = FlowReader(self._events.put)
            ending.callback(reader.stop)
            self._serve(ending)
            self._start_source(ending)
            monitor = Monitor(self._events.put, self._events.put)
            ending.callback(monitor.stop)
            self._begin(monitor)
            self._work(reader)
        return self._tally.totals()

    def stop(self) -> None:
        """End :meth:`run` soon; safe to call from a signal handler."""
        self._stop.set()
        self._events.put(None)

    def report(self) -> dict[str, object]:
        """Return the object of the page ``/bpfsvc/shadow``; for any thread."""
        totals = self._tally.totals()
        return {
            "node": self._config.node_name,
            "since": rfc3339(self._since) if self._since else "",
            "connections": totals.flows,
            "differences": totals.differences,
            "losses": totals.losses,
            "services": [count._asdict() for count in totals.counts],
        }

    def _counts(self) -> ShadowCounts:
        totals = self._tally.totals()
        differences = {count[:3]: count.number for count in totals.counts}
        return ShadowCounts(totals.flows, totals.losses, differences)

    # -- starting --

    def _serve(self, ending: ExitStack) -> None:
        if self._settings.address is None:
            return
        metrics = ShadowMetrics(self._counts)
        server = shadow_server(
            self._settings.address, self._health, metrics.render, self.report, _log.warning
        )
        ending.callback(server.stop)
        server.start()

    def _start_source(self, ending: ExitStack) -> None:
        reader = threading.Thread(target=self._follow_source, name="source", daemon=True)
        ending.callback(reader.join, timeout=1)
        ending.callback(self._stop.set)
        reader.start()

    def _follow_source(self) -> None:
        try:
            self._source.follow(self._stop, self._events.put)
            self._events.put(None)
        except Exception as error:
            # Without objects nothing can be compared, whatever the error is.
            self._events.put(error)

    def _begin(self, monitor: Monitor) -> None:
        """Wait for all objects, and know the node."""
        while not self._apply_first(self._events.take_event(_TICK)):
            pass
        if not self._config.manifests:
            self._intake.report_missing_node(self._config.node_name)
        self._network = monitor.start()
        self._planner.config = self._config.services(self._cache.node)
        tolerance = self._settings.tolerance
        self._history = History(self._planner, self._view(), tolerance + _LATER)
        now = time.monotonic()
        self._planner.sync_all(now, self._history.writer(now))
        self._comparer = Comparer(
            self._history, seconds=tolerance, is_iptables=self._config.mode == "iptables"
        )
        self._health.clear_problem("start")
        kube_proxy = find_kube_proxy()
        if kube_proxy.sees_node and not kube_proxy.runs:
            _log.warning(
                "kube-proxy does not run on this node: only the rules that it left are compared;"
                " start kube-proxy"
            )
        _log.info(
            "shadow mode: %s known; comparing new connections begins in %g s; nothing on this node"
            " is changed",
            count_text(len(self._cache.service_keys()), "Service"),
            tolerance,
        )

    def _apply_first(self, event: Event | None) -> bool:
        """Apply a batch of objects; return True if it is complete: the cache has all objects."""
        if not isinstance(event, Batch):
            return False
        self._intake.apply_batch(event)
        return event.complete

    def _view(self) -> NodeView:
        config, node = self._config, self._cache.node
        return NodeView(
            addresses=frozenset({*addresses(self._network), LOOPBACK}),
            pods=tuple(
                Network(address, bits_of(mask))
                for address, mask in config.detection.ranges(node).values()
            ),
            by_interface=config.detection.by_interface,
            node_ports=resolve(
                config.nodeport_addresses, node, localhost=config.localhost_nodeports
            ),
            node_port_range=config.node_ports,
            service_networks=frozenset(self._planner.service_networks()),
        )

    # -- working --

    def _work(self, reader: FlowReader) -> None:
        """Compare connections that begin after the tolerance, and before the limit."""
        begin = time.monotonic() + self._settings.tolerance
        end = begin + (self._settings.limit or float("inf"))
        while not self._stop.is_set():
            self._apply_events(self._events.take_events(_TICK))
            now = time.monotonic()
            if now >= begin and self._since is None:
                self._since = time.time_ns()
                _log.info("shadow mode: comparing")
            self._take_flows(reader, begin, end)
            self._compare(now)
            self._history.forget(now)
            self._tally.set_losses(reader.losses)
            if now > end + _LATER + _TICK:
                return

    def _apply_events(self, events: list[Event]) -> None:
        touched: set[ServiceKey] = set()
        for event in events:
            if isinstance(event, Interfaces):
                self._network = event
            else:
                touched |= self._intake.apply_batch(event)
        if not events:
            return
        services = self._config.services(self._cache.node)
        if services != self._planner.config:
            self._planner.config = services
            touched |= set(self._cache.service_keys())
        now = time.monotonic()
        self._planner.sync(touched, now, self._history.writer(now))
        self._history.set_view(self._view(), now)

    def _take_flows(self, reader: FlowReader, begin: float, end: float) -> None:
        """Keep the connections that may be to Services, unless the objects may be out of date."""
        outage = self._source.outage()
        self._health.set_note("contact", outage)
        for seen, flow in reader.take_flows():
            if begin <= seen < end and not outage and self._comparer.concerns(flow, seen):
                self._pending.append((seen, flow))

    def _compare(self, now: float) -> None:
        for seen, flow in self._due(now):
            compared = self._comparer.compare(flow, seen)
            if compared and self._tally.add(compared):
                name = "/".join(compared.service) if compared.service[1] else "an unknown Service"
                _log.warning(
                    "%s differs (%s): %s",
                    *(name, compared.kind, compared.text),
                    extra={"service": name},
                )

    def _due(self, now: float) -> Iterator[tuple[float, Flow]]:
        while self._pending and self._pending[0][0] <= now - _LATER:
            yield self._pending.popleft()
