"""The agent of one node: its threads, and its phases: loading, starting, working, ending.

One thread (the caller's) owns the plans and the kernel's maps of Services. The source, the monitor
of interfaces, the connection GC and the end of connections to endpoints that left have threads of
their own, which only put events into the queue or use maps that the agent's thread does not write.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from bpfsvc.agent import memory
from bpfsvc.agent.assembly import Assembly
from bpfsvc.agent.flows.established_flows import EstablishedFlows
from bpfsvc.agent.node.early_attachments import EarlyAttachments
from bpfsvc.agent.node.fast_path_guard import FastPathGuard
from bpfsvc.agent.objects.event_queue import Stopped
from bpfsvc.agent.objects.feed import ObjectFeed
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.servers import Servers
from bpfsvc.agent.start_log import log_ready
from bpfsvc.base.errors import Interrupted
from bpfsvc.base.fast_path import ESTABLISHED
from bpfsvc.config.config import Config
from bpfsvc.datapath.loader import features
from bpfsvc.datapath.loader.installation import Installation, begin_install
from bpfsvc.datapath.loader.source import load
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.kube.event_recorder import EventRecorder
from bpfsvc.kube.source import Source

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
        """``guard``: finds out the level at which the fast path may be used; None: it is off.

        ``prepare()`` is called when Services work: nothing can refuse the start any more.
        """
        self._config = config
        self._servers = servers
        self._recorder = recorder
        self._guard = guard
        self._prepare = prepare
        self._reports = Reports(recorder, servers.health)
        self._feed = ObjectFeed(config, source, servers.health, servers.metrics, self._reports)

    def run(self) -> None:
        """Work until :meth:`stop`; programs and maps stay in the kernel afterwards."""
        began = time.monotonic()
        memory.collect_rarely()
        root = PinRoot(self._config.pin_root)
        root.create()
        with ExitStack() as ending, suppress(Stopped, Interrupted):
            ending.callback(os.close, root.lock())
            early = EarlyAttachments(self._config, root)
            ending.callback(early.stop)
            early.start()
            self._start_threads(ending)
            installation = self._install(root)
            ending.callback(installation.end_loading)
            installation.on_failure(self._feed.events.put)
            assembly = Assembly(self._config, self._feed, self._servers, self._reports, self._guard)
            startup, loop, node = assembly.connect(installation, early, ending)
            startup.run()
            self._prepare()
            services, seconds = self._feed.cache.service_keys(), time.monotonic() - began
            log_ready(len(services), seconds, node.attached, node.with_xdp)
            self._watch_fast_path(installation, ending)
            loop.run(self._feed.stopped)

    def stop(self) -> None:
        """End :meth:`run` soon; safe to call from a signal handler."""
        self._feed.stop()

    def _install(self, root: PinRoot) -> Installation:
        config = self._config
        source = load(config.sizes)
        for line in features.lines(features.of_this_kernel().missing()):
            _log.info("this kernel has %s", line)
        stopped = self._feed.stopped.is_set
        return begin_install(root, source, _log.info, config.cache, config.programs, stopped)

    def _start_threads(self, ending: ExitStack) -> None:
        """Start what needs no kernel: servers, and the source while the programs are compiled."""
        ending.callback(self._end_threads)
        if not self._config.manifests:
            self._servers.health.set_node_eligible(False)
        self._servers.start()
        self._recorder.started()
        self._feed.start()

    def _end_threads(self) -> None:
        self._feed.stop()
        self._feed.save_snapshot()
        self._servers.stop()
        self._recorder.stop()
        self._feed.join()

    def _watch_fast_path(self, installation: Installation, ending: ExitStack) -> None:
        """Watch from now on what forbids the fast path, or which connections may use it."""
        if (guard := self._guard) is None:
            return
        guard.start()
        ending.callback(guard.stop)
        flows = EstablishedFlows(
            installation.pinned,
            partial(self._reports.note, "established"),
            lambda: guard.use.level == ESTABLISHED,
        )
        ending.callback(flows.stop)
        flows.start()
