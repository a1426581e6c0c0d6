"""The phases of an agent after its programs are loaded, and the objects that work in them."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from bpfsvc.agent import local_answers, memory
from bpfsvc.agent.change_handler import ChangeHandler
from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.agent.flows.failed_backends import FailedBackends
from bpfsvc.agent.flows.netfilter_flows import NetfilterFlows
from bpfsvc.agent.flows.recent_failures import RecentFailures
from bpfsvc.agent.history.changes import History
from bpfsvc.agent.history.failures import FailureHistory
from bpfsvc.agent.loop import Actions, Loop
from bpfsvc.agent.node.early_attachments import EarlyAttachments
from bpfsvc.agent.node.fast_path_guard import LOOK_SECONDS, FastPathGuard
from bpfsvc.agent.node.node_sync import NodeSync
from bpfsvc.agent.node_settings import NodeSettings
from bpfsvc.agent.objects.feed import ObjectFeed
from bpfsvc.agent.observe.elsewhere import DropCounter
from bpfsvc.agent.observe.stream import EventStream
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.servers import Servers
from bpfsvc.agent.startup import CHECK_SECONDS, Startup
from bpfsvc.agent.sync.making import make_syncer
from bpfsvc.agent.sync.syncer import Syncer
from bpfsvc.config.config import Config
from bpfsvc.datapath.loader.installation import Installation
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.http.local_server import LocalServer
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.model import Node
from bpfsvc.services.planner import Planner

_GC_SECONDS = 5.0
"""How often ended connections are removed."""

_TICK_SECONDS = 1.0
"""How often to do what only costs something when it has changed."""

_FAILURE_SECONDS = 3.0
"""How often what has failed is compared with what had failed before."""

_RECONCILE_SECONDS = 600.0
"""How often the kernel's maps are compared with what should be in them."""

_log = logging.getLogger("bpfsvc")


class Phases(NamedTuple):
    """What an agent does one after the other; ``node`` knows where programs are attached."""

    startup: Startup
    loop: Loop
    node: NodeSync


class Assembly:
    """Connects the objects of one agent."""

    def __init__(
        self,
        config: Config,
        feed: ObjectFeed,
        servers: Servers,
        reports: Reports,
        guard: FastPathGuard | None,
    ) -> None:
        """``guard``: None if the fast path is off."""
        self._config = config
        self._feed = feed
        self._servers = servers
        self._reports = reports
        self._guard = guard

    def connect(
        self, installation: Installation, early: EarlyAttachments, ending: ExitStack
    ) -> Phases:
        """Return the phases; ``ending`` stops what they start."""
        config, feed, pinned = self._config, self._feed, installation.pinned
        metrics, reports = self._servers.metrics, self._reports
        history, failed = self._begin_history(ending)
        health_checks = self._make_health_checks(ending)
        gc = ConnectionGc(pinned, config.lifetimes, _GC_SECONDS, reports.nearly_full)
        ending.callback(gc.stop)
        planner = self._make_planner()
        stream, failures = self._answer(planner, history, failed, installation, ending)
        node = NodeSync(config, installation, health_checks, metrics, reports)
        syncer = make_syncer(
            planner,
            pinned,
            feed.parse_errors,
            metrics,
            reports,
            history,
            gc=gc,
            health_checks=health_checks,
            with_sockets=config.cgroup_root is not None,
            watch_sockets=node.watch_sockets,
            ending=ending,
        )
        self._use_fast_path(node)
        netfilter_flows = NetfilterFlows(pinned, config.masquerade_ports)
        monitor = Monitor(feed.events.put, feed.events.put)
        ending.callback(monitor.stop)

        def attach() -> None:
            netfilter_flows.begin()
            installation.wait()
            failures.update(time.monotonic())  # from here on, failures are new
            early.stop()
            node.start(monitor.start())
            netfilter_flows.refresh()
            for thread in (gc, health_checks, stream):
                thread.start()

        settings = NodeSettings(config, planner, node)
        handler = ChangeHandler(feed.intake, node, settings, syncer, history, monitor.latest)
        actions = self._actions(node, syncer, netfilter_flows, history, failed, failures)
        return Phases(
            Startup(config, feed, node, settings, syncer, attach),
            Loop(feed.events, handler.handle, actions, partial(self._reports.note, "shortage")),
            node,
        )

    def _begin_history(self, ending: ExitStack) -> tuple[History, FailureHistory]:
        history, failed = History(*self._config.history), FailureHistory(*self._config.history)
        history.load()
        failed.load()
        ending.callback(history.save)
        ending.callback(failed.save, float("inf"))
        return history, failed

    def _make_health_checks(self, ending: ExitStack) -> ServiceHealthChecks:
        health, listeners = self._servers.health, self._servers.steered_listeners()
        checks = ServiceHealthChecks(
            lambda: health.report()[0], self._reports.failed_check, listeners
        )
        ending.callback(checks.stop)
        return checks

    def _make_planner(self) -> Planner:
        config = self._config
        services = config.services(Node(config.node_name))
        return Planner(self._feed.cache, services, max_backends=config.sizes.max_backends)

    def _answer(
        self,
        planner: Planner,
        history: History,
        failed: FailureHistory,
        installation: Installation,
        ending: ExitStack,
    ) -> tuple[EventStream, RecentFailures]:
        """Answer this node's commands; return the events, which are not read yet, and failures."""
        config, pinned = self._config, installation.pinned
        cache = self._feed.cache
        counter = self._make_drop_counter()
        stream = EventStream(
            lambda: pinned.directory, cache, config.node_name, failed, counter, _log.warning
        )
        ending.callback(stream.stop)
        failures = RecentFailures(pinned, FailedBackends(planner, failed))
        answers = local_answers.answers(
            *(config, planner, self._feed.source, history, failed),
            lambda: failures.answer,
            self._reports.state,
        )
        server = LocalServer(config.pin_root, answers, _log.warning, stream.routes())
        server.start()
        ending.callback(server.stop)
        return stream, failures

    def _make_drop_counter(self) -> DropCounter:
        def report(text: str) -> None:
            _log.warning("%s", text)
            self._reports.note("drops", text)

        is_wanted = self._config.count_drops_elsewhere
        return DropCounter(self._servers.metrics, report, is_wanted=is_wanted)

    def _actions(
        self,
        node: NodeSync,
        syncer: Syncer,
        netfilter_flows: NetfilterFlows,
        history: History,
        failed: FailureHistory,
        failures: RecentFailures,
    ) -> dict[float, Actions]:
        """Return what the agent's thread does by the clock, by the seconds between two times."""
        return {
            _TICK_SECONDS: (
                lambda _: node.check_pins(),
                lambda _: self._use_fast_path(node),
                lambda _: self._reports.note("contact", self._feed.source.outage()),
                syncer.sync_due,
                lambda _: self._feed.save_snapshot_if_due(),
                lambda _: history.save(),
                lambda _: failed.save(),
            ),
            _FAILURE_SECONDS: (failures.update,),
            LOOK_SECONDS: (lambda _: node.check_shared_devices(),),
            CHECK_SECONDS: (
                lambda _: node.check_attachments(),
                syncer.retry,
                lambda _: netfilter_flows.forget_ended(),
            ),
            _RECONCILE_SECONDS: (
                lambda _: syncer.reconcile(),
                lambda _: node.refresh(),
                lambda _: memory.trim_heap(),
            ),
        }

    def _use_fast_path(self, node: NodeSync) -> None:
        if self._guard:
            node.use_fast_path(self._guard.use)
