"""The parts of an agent whose programs are loaded: what starting and working have in common."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bpfsvc.agent.event_queue import EventQueue
from bpfsvc.agent.flows.connection_gc import ConnectionGc
from bpfsvc.agent.flows.netfilter_flows import NetfilterFlows
from bpfsvc.agent.node.node_sync import NodeSync
from bpfsvc.agent.object_intake import ObjectIntake
from bpfsvc.agent.reports import Reports
from bpfsvc.agent.syncer import Syncer
from bpfsvc.config.config import Config
from bpfsvc.http.healthz import Health
from bpfsvc.http.service_health import ServiceHealthChecks
from bpfsvc.services.cache import ServiceKey

_log = logging.getLogger("bpfsvc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts; all but health, health checks and collector belong to the agent's own thread."""

    config: Config
    events: EventQueue
    intake: ObjectIntake
    node: NodeSync
    syncer: Syncer
    collector: ConnectionGc
    netfilter_flows: NetfilterFlows
    health: Health
    health_checks: ServiceHealthChecks
    reports: Reports

    def use_node_object(self) -> set[ServiceKey]:
        """Use what the Node object says; return the Services whose entries depend on it."""
        node = self.intake.cache.node
        self.node.set_node(node)
        services = self.config.services(node)
        if not (services.detector_v4 or services.detector_v6):
            _log.warning(
                "local pods cannot be identified; their traffic is handled as external"
                " (--detect-local-mode is %s, and no range of pods is known)",
                self.config.detection.mode,
            )
        return self.syncer.set_service_config(services)
