"""From empty maps to working Services: objects first, then entries, then hooks.

Everything is written once before the programs are attached: no packet meets half of the Services.
The programs of a first build are verified meanwhile. Where the API server does not answer, the node
starts from what there is (:mod:`bpfsvc.agent.objects.cold_start`), and goes on waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from bpfsvc.agent import memory
from bpfsvc.agent.node.node_sync import NodeSync
from bpfsvc.agent.node_settings import NodeSettings
from bpfsvc.agent.objects.feed import ObjectFeed
from bpfsvc.agent.sync.syncer import Syncer
from bpfsvc.config import notes
from bpfsvc.config.config import Config
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.datapath.sysctl import address_families
from bpfsvc.kube.source import Batch

CHECK_SECONDS = 30.0
"""How often attachments are checked: nothing announces that another program removes them."""

_log = logging.getLogger("bpfsvc")


class Startup:
    """The first phase of an agent, in its thread."""

    def __init__(
        self,
        config: Config,
        feed: ObjectFeed,
        node: NodeSync,
        settings: NodeSettings,
        syncer: Syncer,
        attach: Callable[[], None],
    ) -> None:
        """``attach()`` attaches the programs, and begins what needs them; it is called once."""
        self._config = config
        self._feed = feed
        self._node = node
        self._settings = settings
        self._syncer = syncer
        self._attach_first = attach

    def run(self) -> None:
        """Return when all Services are in the kernel and the programs are attached."""
        batches = self._wait_for_objects()
        intake = self._feed.intake
        if batches and not self._config.manifests:
            intake.report_missing_node(self._config.node_name)
        node = self._feed.cache.node
        for warning in notes.about_families(self._config, node, address_families()):
            _log.warning("%s", warning)
        self._settings.use_node()
        self._syncer.start(time.monotonic())
        self._attach()
        intake.report_applied(batches)
        del batches  # the first one names every object
        memory.release_startup_memory()
        intake.report_started()

    def _wait_for_objects(self) -> list[Batch]:
        """Return the batches up to the first complete one; fewer if the snapshot is used."""
        batches: list[Batch] = []
        patience_ends = time.monotonic() + self._config.patience_seconds
        may_start_cold = self._feed.cold_start is not None
        while True:
            left = patience_ends - time.monotonic() if may_start_cold else CHECK_SECONDS
            event = self._feed.events.take_event(max(0.0, left))
            if isinstance(event, Interfaces):
                self._node.follow_network(event)
            elif event is not None:
                self._feed.intake.apply_batch(event)
                batches.append(event)
                if event.complete:
                    return batches
            else:
                if may_start_cold and self._start_cold():
                    return batches
                may_start_cold = False
                self._node.check_attachments()

    def _start_cold(self) -> bool:
        """Begin without the source; return True if the snapshot is to be programmed."""
        assert self._feed.cold_start is not None
        held = self._syncer.count_held()
        use_snapshot = self._feed.cold_start.begin(held)
        self._feed.intake.report_node()
        if held and self._feed.cache.node_seen and not self._node.is_fresh:
            self._settings.use_node()
            self._attach()
            self._syncer.report(self._feed.cache.service_keys())
            self._feed.intake.report_started()
        return use_snapshot

    def _attach(self) -> None:
        if self._node.is_following:
            self._node.refresh()
        else:
            self._attach_first()
