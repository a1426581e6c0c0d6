"""The working phase: something changes, what it touches is planned, the plan is written.

The first event of a quiet time is handled at once; those that arrive meanwhile are handled together
next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from bpfsvc.agent import memory
from bpfsvc.agent.event_queue import Event
from bpfsvc.agent.node.fast_path_guard import LOOK_SECONDS, FastPathGuard
from bpfsvc.agent.parts import Parts
from bpfsvc.base.texts import count_text
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.kube.source import Batch, Source
from bpfsvc.services.cache import ServiceKey

_log = logging.getLogger("bpfsvc")

_TICK = 1.0
"""Seconds at most between two looks at the clock."""

_RECONCILE_SECONDS = 600.0
"""How often the kernel's maps are compared with what should be in them."""

CHECK_SECONDS = 30.0
"""How often attachments are checked: nothing announces that another program removes them."""


class Loop:
    """The second phase of an agent. ``guard``: whether the fast path may be used; None: never."""

    def __init__(self, parts: Parts, source: Source, guard: FastPathGuard | None) -> None:
        self._parts = parts
        self._source = source
        self._guard = guard
        self._cache = parts.intake.cache

    def run(self, stop: threading.Event) -> None:
        """Handle events until ``stop`` is set, and what is due by the clock."""
        reconcile_at = time.monotonic() + _RECONCILE_SECONDS
        check_at = time.monotonic() + CHECK_SECONDS
        look_at = time.monotonic() + LOOK_SECONDS
        tick_at = 0.0
        while not stop.is_set():
            self._handle(self._parts.events.drain(_TICK))
            now = time.monotonic()
            if now >= tick_at:
                self._tick()
                tick_at = now + _TICK
            if now >= look_at:
                self._parts.node.check_shared_devices()
                look_at = now + LOOK_SECONDS
            if now >= check_at:
                self._check()
                check_at = now + CHECK_SECONDS
            if now >= reconcile_at:
                self._compare_with_kernel()
                reconcile_at = now + _RECONCILE_SECONDS

    def _handle(self, events: Iterable[Event]) -> None:
        parts = self._parts
        touched: set[ServiceKey] = set()
        batches: list[Batch] = []
        for event in events:
            if isinstance(event, Interfaces):
                parts.node.follow(event)
                continue
            node = self._cache.node
            touched |= parts.intake.apply(event)
            batches.append(event)
            if self._cache.node != node:
                touched |= parts.use_node_object()
                parts.node.follow_again()
        if batches:
            parts.syncer.sync(touched)
            parts.syncer.sync_service_networks()
            parts.syncer.sync_opted_out_pods()
            parts.intake.report_applied(batches)

    def _tick(self) -> None:
        """Every second: what only costs something when it has changed."""
        parts = self._parts
        parts.node.check_pins()
        if self._guard:
            parts.node.use_fast_path(self._guard.reason)
        parts.health.set_note("contact", self._source.outage())
        parts.syncer.grow_shares()
        parts.syncer.judge_endpoints()
        if parts.intake.cold_start:
            parts.intake.cold_start.save_if_due()

    def _check(self) -> None:
        """Every half minute: what other programs changed, and what may be possible by now."""
        self._parts.node.check_attachments()
        self._parts.syncer.retry_refused()
        self._parts.syncer.forget_closed_sockets()
        self._parts.netfilter_flows.forget_ended()

    def _compare_with_kernel(self) -> None:
        """Every ten minutes: repair what another program changed."""
        drift = self._parts.syncer.repair_drift()
        if drift:
            entries = count_text(drift, "entry", "entries")
            _log.warning("repaired %s that another program changed in the kernel", entries)
        self._parts.node.follow_again()
        memory.trim_heap()
