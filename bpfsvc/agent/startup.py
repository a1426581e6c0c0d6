"""From maps to a node whose Services work: objects first, then entries, then hooks.

Everything is written once before the programs are attached: no packet meets half of the Services.
The programs of a first build are verified meanwhile.
Where the API server does not answer, the node starts from what there is
(:mod:`bpfsvc.agent.cold_start`) and goes on waiting.
"""

from __future__ import annotations

import logging
import time

from bpfsvc.agent import memory
from bpfsvc.agent.loop import CHECK_SECONDS
from bpfsvc.agent.node.early_attachments import EarlyAttachments
from bpfsvc.agent.parts import Parts
from bpfsvc.config import notes
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.datapath.netlink.monitor import Monitor
from bpfsvc.datapath.sysctl import address_families
from bpfsvc.kube.source import Batch

_log = logging.getLogger("bpfsvc")


class Startup:
    """The first phase of an agent; ``fresh``: its programs are not attached yet."""

    def __init__(
        self, parts: Parts, monitor: Monitor, early: EarlyAttachments, *, fresh: bool
    ) -> None:
        self._parts = parts
        self._early = early
        self._cache = parts.intake.cache
        self._monitor = monitor
        self._fresh = fresh

    def run(self) -> None:
        """Return when all Services are in the kernel and the programs are attached."""
        parts = self._parts
        batches = self._wait_for_objects()
        if batches and not parts.config.manifests:
            parts.intake.report_missing_node(parts.config.node_name)
        for warning in notes.about_families(parts.config, self._cache.node, address_families()):
            _log.warning("%s", warning)
        parts.use_node_object()
        parts.syncer.start()
        self._attach()
        parts.intake.report_applied(batches)
        del batches  # the first one names every object
        memory.release_startup_memory()
        parts.health.clear_problem("start")

    def _wait_for_objects(self) -> list[Batch]:
        """Return the batches up to the first complete one; fewer if the snapshot is used."""
        parts, taken = self._parts, list[Batch]()
        patience_ends = time.monotonic() + parts.config.patience_seconds
        may_start_cold = parts.intake.cold_start is not None
        while True:
            left = patience_ends - time.monotonic() if may_start_cold else CHECK_SECONDS
            event = parts.events.take(max(0.0, left))
            if isinstance(event, Interfaces):
                parts.node.follow(event)
            elif event is not None:
                parts.intake.apply(event)
                taken.append(event)
                if event.complete:
                    return taken
            else:
                if may_start_cold and self._start_cold():
                    return taken
                may_start_cold = False
                parts.node.check_attachments()

    def _start_cold(self) -> bool:
        """Begin without the source; return True if the snapshot is to be programmed."""
        parts = self._parts
        assert parts.intake.cold_start is not None
        held = parts.syncer.count_held()
        use_snapshot = parts.intake.cold_start.begin(held)
        parts.intake.report_node()
        if held and self._cache.node_seen and not self._fresh:
            parts.use_node_object()
            self._attach()
            parts.syncer.report(self._cache.service_keys())
            parts.health.clear_problem("start")
        return use_snapshot

    def _attach(self) -> None:
        """Attach the programs, and follow the interfaces from now on. Once only."""
        parts = self._parts
        if parts.node.is_following:
            parts.node.follow_again()
            return
        parts.netfilter_flows.begin()
        parts.node.wait_for_programs()
        self._early.stop()
        parts.node.start(self._monitor.start())
        parts.netfilter_flows.refresh()
        parts.collector.start(_log.warning, parts.reports.nearly_full)
        parts.health_checks.start()
