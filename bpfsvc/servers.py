"""What the agent serves over HTTP, and what it is told for that: health, and metrics if wanted.

Whoever does not want metrics does not pay for them: what remembers them is imported only then.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bpfsvc.announcer import Announcer
from bpfsvc.config import Config
from bpfsvc.errors import UsageError
from bpfsvc.health import Health, HealthServer
from bpfsvc.metrics.observer import Observer

if TYPE_CHECKING:
    from bpfsvc.metrics.server import MetricsServer

_log = logging.getLogger("bpfsvc")


class Servers:
    """The servers of one agent; ``health`` and ``metrics`` are told what they are to say."""

    def __init__(
        self, config: Config, announcer: Announcer, flags: Mapping[str, object] | None = None
    ) -> None:
        """``flags``: those that were given, by name, for people to see."""
        self._announcer = announcer
        self._flags = flags or {}
        self.health = Health(2 * config.sync_seconds)
        self.metrics = Observer()
        self._servers: dict[str, HealthServer | MetricsServer] = {}
        if config.metrics:
            self._servers["metrics"] = self._measure(config, config.metrics)
        if config.healthz:
            self._servers["healthz"] = HealthServer(
                config.healthz,
                self.health,
                _log.warning,
                answered=self.metrics.answered,
                hard_fail=config.bind_address_hard_fail,
            )

    def start(self) -> None:
        """Answer from now on; ``UsageError`` if an address cannot be had and must be."""
        for name, server in self._servers.items():
            try:
                server.start()
            except UsageError as error:
                self._announcer.server_failed(name, error.message)
                raise

    def stop(self) -> None:
        """Stop answering."""
        for server in self._servers.values():
            server.stop()

    def _measure(self, config: Config, address: tuple[str, int]) -> MetricsServer:
        from bpfsvc.metrics.recorder import Metrics
        from bpfsvc.metrics.server import About, MetricsServer

        self.metrics = metrics = Metrics()
        about = About(
            mode=config.mode,
            configuration=config.document,
            flags=self._flags,
            checks={
                "healthz": lambda: self.health.healthz()[0],
                "livez": lambda: self.health.livez()[0],
            },
            profiling=config.profiling,
        )
        return MetricsServer(
            address, metrics, about, _log.warning, hard_fail=config.bind_address_hard_fail
        )
