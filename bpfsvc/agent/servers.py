"""The HTTP servers of the agent: health, and metrics and the page if wanted.

Without them nothing of them is imported, so that they cost no memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.config.config import Config
from bpfsvc.datapath.steering import SteeredListeners, Steering
from bpfsvc.http.healthz import Health, HealthServer
from bpfsvc.kube.event_recorder import EventRecorder
from bpfsvc.metrics.observer import ApiContact, Observer

if TYPE_CHECKING:
    from bpfsvc.agent.page_process import PageProcess
    from bpfsvc.http.metrics_server import MetricsServer
    from bpfsvc.metrics.recorder import Metrics

_log = logging.getLogger("bpfsvc")


def make_metrics(
    config: Config, contacts: Callable[[], Iterable[ApiContact]] | None = None
) -> Metrics | None:
    """Return what records metrics; None if none are served.

    ``contacts()`` is called at each scrape for the connections to the API server, if there is one.
    """
    if not config.metrics:
        return None
    from bpfsvc.metrics.recorder import Metrics

    return Metrics(contacts, series=config.metrics_services)


class Servers:
    """The servers of one agent, and the ``health`` and ``metrics`` that they show."""

    def __init__(
        self,
        config: Config,
        recorder: EventRecorder,
        metrics: Metrics | None,
        flags: Mapping[str, object] | None = None,
    ) -> None:
        """``metrics``: from :func:`make_metrics`; ``flags``: those that were given, for /flagz."""
        self._recorder = recorder
        self.health = Health(2 * config.sync_seconds)
        self.metrics: Observer = metrics or Observer()
        self._servers: dict[str, HealthServer | MetricsServer | PageProcess] = {}
        self._config = config
        self._steering: Steering | None = None
        if config.metrics and metrics:
            self._servers["metrics"] = self._metrics_server(metrics, config.metrics, flags or {})
        if config.ui:
            self._servers["page"] = self._page(config.ui)

    def start(self) -> None:
        """Start answering; ``UsageError`` if an address is taken and must not be."""
        self._steer()
        if self._config.healthz:
            self._servers["healthz"] = HealthServer(
                self._config.healthz,
                self.health,
                _log.warning,
                answered=self.metrics.health_response,
                hard_fail=self._config.bind_address_hard_fail,
                steered=self.steered_listeners(),
            )
        for name, server in self._servers.items():
            try:
                server.start()
            except UsageError as error:
                self._recorder.server_failed(name, error.message)
                raise

    def stop(self) -> None:
        """Stop answering."""
        for server in self._servers.values():
            server.stop()
        if self._steering:
            self._steering.close()

    def steered_listeners(self) -> SteeredListeners | None:
        """Return new listeners to steer connections to; None if the kernel cannot."""
        return self._steering.listen() if self._steering else None

    def _steer(self) -> None:
        """Have the kernel steer connections: kube-proxy may be bound to the same ports."""
        try:
            self._steering = Steering()
        except (OSError, BpfsvcError) as error:
            _log.warning(
                "the kernel cannot steer connections, so ports of health checks are bound: %s;"
                " while kube-proxy is bound to these ports, it answers in place of this agent",
                error,
            )

    def _metrics_server(
        self, metrics: Metrics, address: tuple[str, int], flags: Mapping[str, object]
    ) -> MetricsServer:
        from bpfsvc.http.metrics_server import AgentInfo, MetricsServer

        config = self._config
        info = AgentInfo(
            mode=config.mode,
            configuration=config.document,
            flags=flags,
            checks={
                "healthz": lambda: self.health.healthz()[0],
                "livez": lambda: self.health.livez()[0],
            },
            profiling=config.profiling,
        )
        return MetricsServer(
            address, metrics, info, _log.warning, hard_fail=config.bind_address_hard_fail
        )

    def _page(self, address: tuple[str, int]) -> PageProcess:
        from bpfsvc.agent.page_process import PageProcess

        config = self._config
        return PageProcess(address, config.pin_root, config.healthz, _log.warning)
