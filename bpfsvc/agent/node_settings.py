"""The settings that follow from the Node object: its zone, its addresses, its range of pods."""

from __future__ import annotations

import logging

from bpfsvc.agent.node.node_sync import NodeSync
from bpfsvc.config.config import Config
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.planner import Planner

_log = logging.getLogger("bpfsvc")


class NodeSettings:
    """Hands the settings to the planner and to the node; belongs to the agent's thread."""

    def __init__(self, config: Config, planner: Planner, node: NodeSync) -> None:
        self._config = config
        self._planner = planner
        self._node = node
        self._used = planner.cache.node

    @property
    def is_outdated(self) -> bool:
        """True if the Node object has changed since :meth:`use_node`."""
        return self._planner.cache.node != self._used

    def use_node(self) -> set[ServiceKey]:
        """Use what the Node object says; return the Services that depend on it."""
        self._used = node = self._planner.cache.node
        self._node.set_node(node)
        services = self._config.services(node)
        if not (services.detector_v4 or services.detector_v6):
            _log.warning(
                "local pods cannot be identified; their traffic is handled as external"
                " (--detect-local-mode is %s, and no range of pods is known)",
                self._config.detection.mode,
            )
        if services == self._planner.config:
            return set()
        self._planner.config = services
        return set(self._planner.cache.service_keys())
