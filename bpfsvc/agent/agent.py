"""The agent of one node: its threads, and its phases: loading, starting, working, ending.

One thread (the caller's) owns the plans and the kernel's maps of Services. The source, the monitor
of interfaces, the connection GC and what ends connections to endpoints that left have threads of
their own, and only put events into the queue or use maps that this one does not write.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from bpfsvc.agent import memory
from bpfsvc.agent.cold_start import ColdStart
from bpfsvc.agent.event_queue import EventQueue, Stopped
from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.agent.flows.endpoint_removal import EndpointRemoval
from bpfsvc.agent.flows.established_flows import EstablishedFlows
from bpfsvc.agent.flows.netfilter_flows import NetfilterFlows
from bpfsvc.agent.local_answers import answers
from bpfsvc.agent.loop import Loop
from bpfsvc.agent.node.early_attachments import EarlyAttachments
from bpfsvc.agent.node.fast_path_guard import FastPathGuard
from bpfsvc.agent.node.node_sync import NodeSync
from bpfsvc.agent.object_intake import ObjectIntake
from bpfsvc.agent.parts import Parts
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.servers import Servers
from bpfsvc.agent.start_log import ready_line
from bpfsvc.agent.startup import Startup
from bpfsvc.agent.syncer import Syncer
from bpfsvc.config.config import Config
from bpfsvc.datapath.loader.installation import Installation, begin_install
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.http.local_server import LocalServer
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.kube.event_recorder import EventRecorder
from bpfsvc.kube.snapshot import SnapshotFile
from bpfsvc.kube.source import Batch, Source
from bpfsvc.model import Node
from bpfsvc.services.cache import Cache
from bpfsvc.services.planner import Planner

_GC_SECONDS = 5.0
"""How often ended connections are removed."""

_log = logging.getLogger("bpfsvc")


class Agent:
    """One node's agent."""

    def __init__(
        self,
        config: Config,
        source: Source,
        servers: Servers,
        recorder: EventRecorder,
        guard: FastPathGuard | None = None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """``guard``: finds out whether the fast path may be used; None: it is off.

        ``prepare()`` is called when Services work: nothing can refuse the start any more.
        """
        self._config = config
        self._source = source
        self._servers = servers
        self._recorder = recorder
        self._reports = Reports(recorder)
        self._prepare = prepare
        self._guard = guard
        self._events = EventQueue()
        self._stop = threading.Event()
        self._cache = Cache(config.node_name, config.address_override)
        # Manifests name all pods that there are; an API server does when it has listed them.
        self._cache.pods_seen = config.manifests is not None

    def run(self) -> None:
        """Work until :meth:`stop`; what is in the kernel stays there afterwards."""
        began = time.monotonic()
        memory.use_one_heap()
        memory.collect_rarely()
        root = PinRoot(self._config.pin_root)
        root.create()
        with ExitStack() as ending, suppress(Stopped):
            ending.callback(os.close, root.lock())
            early = EarlyAttachments(self._config, root)
            ending.callback(early.stop)
            early.start()
            intake = self._start_threads(ending)
            installation = self._install(root)
            ending.callback(installation.end_loading)
            installation.on_failure(self._events.put)
            parts = self._make_parts(installation, intake, ending)
            if self._guard:
                parts.node.use_fast_path(self._guard.reason)
            monitor = Monitor(self._events.put, self._events.put)
            ending.callback(monitor.stop)
            Startup(parts, monitor, early, fresh=installation.fresh).run()
            self._prepare()
            self._log_ready(parts.node, time.monotonic() - began)
            if self._guard:
                self._guard.start()
            if self._config.fast_path == "established":
                flows = EstablishedFlows(
                    installation.pinned, partial(parts.health.set_note, "established")
                )
                ending.callback(flows.stop)
                flows.start()
            Loop(parts, self._source, self._guard).run(self._stop)

    def _install(self, root: PinRoot) -> Installation:
        config = self._config
        source = load(config.sizes)
        return begin_install(root, source, _log.info, config.cache, config.programs)

    def stop(self) -> None:
        """End :meth:`run` soon; safe to call from a signal handler."""
        self._stop.set()
        self._events.put(None)

    def _start_threads(self, ending: ExitStack) -> ObjectIntake:
        """Start what needs no kernel: servers, and the source while the programs are compiled."""
        intake = self._make_intake()
        reader = threading.Thread(target=self._follow_source, name="source", daemon=True)
        ending.callback(self._end_threads, reader, intake)
        if not self._config.manifests:
            self._servers.health.set_node_eligible(False)
        self._servers.start()
        self._recorder.started()
        reader.start()
        return intake

    def _end_threads(self, reader: threading.Thread, intake: ObjectIntake) -> None:
        self._stop.set()
        if self._guard:
            self._guard.stop()
        if intake.cold_start:
            intake.cold_start.finish()
        self._servers.stop()
        self._recorder.stop()
        if reader.ident is not None:
            reader.join(timeout=1)

    def _follow_source(self) -> None:
        try:
            self._source.follow(self._stop, self._queue_batch)
            self._events.put(None)
        except Exception as error:
            # Whatever it is: without a source the agent must not go on as if all were well.
            self._events.put(error)

    def _queue_batch(self, batch: Batch) -> None:
        self._servers.health.queued()
        self._servers.metrics.queued(batch)
        self._events.put(batch)

    def _log_ready(self, node: NodeSync, seconds: float) -> None:
        services = len(self._cache.service_keys())
        _log.info("%s", ready_line(services, seconds, node.attached, node.with_xdp))

    # -- parts --

    def _make_intake(self) -> ObjectIntake:
        health, metrics = self._servers.health, self._servers.metrics
        cold_start = None
        if self._config.last_good:
            snapshot = SnapshotFile(self._config.last_good, self._config.node_name)
            cold_start = ColdStart(snapshot, self._cache, health, metrics)
        return ObjectIntake(self._cache, cold_start, health, metrics, self._reports)

    def _make_parts(
        self, installation: Installation, intake: ObjectIntake, ending: ExitStack
    ) -> Parts:
        config, pinned = self._config, installation.pinned
        health, metrics = self._servers.health, self._servers.metrics
        health_checks = ServiceHealthChecks(
            lambda: health.report()[0],
            self._reports.failed_check,
            self._servers.steered_listeners(),
        )
        ending.callback(health_checks.stop)
        collector = ConnectionGc(pinned, config.lifetimes, _GC_SECONDS)
        ending.callback(collector.stop)
        with_sockets = config.cgroup_root is not None
        removal = EndpointRemoval(pinned, metrics, with_sockets=with_sockets)
        ending.callback(removal.stop)
        planner = Planner(
            self._cache,
            config.services(Node(config.node_name)),
            max_backends=config.sizes.max_backends,
        )
        local = LocalServer(config.pin_root, answers(planner, self._source), _log.warning)
        local.start()
        ending.callback(local.stop)
        node = NodeSync(config, installation, health, health_checks, metrics, self._reports)
        return Parts(
            config=config,
            events=self._events,
            intake=intake,
            node=node,
            syncer=Syncer(
                planner,
                pinned,
                collector,
                health,
                health_checks,
                intake.parse_errors,
                removal,
                metrics=metrics,
                reports=self._reports,
                with_sockets=with_sockets,
                watch_sockets=node.watch_sockets,
            ),
            collector=collector,
            netfilter_flows=NetfilterFlows(pinned, config.masquerade_ports),
            health=health,
            health_checks=health_checks,
            reports=self._reports,
        )
