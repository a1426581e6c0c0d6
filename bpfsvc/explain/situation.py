"""The node that a question is asked of, and how its agent is set up."""

from __future__ import annotations

from dataclasses import dataclass

from bpfsvc.detection import Detection
from bpfsvc.model import Node
from bpfsvc.nodeports import NodePortAddresses
from bpfsvc.surroundings import NodeContext, ServiceConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One node.

    * ``addresses``: all that are the node's own, packed, loopback left out.
    * ``node_ports``: at which of them NodePorts are served.
    """

    node: Node
    detection: Detection
    config: ServiceConfig
    addresses: tuple[bytes, ...]
    node_ports: NodePortAddresses

    @property
    def context(self) -> NodeContext:
        """What endpoints and clients are compared with."""
        return NodeContext(self.node.name, self.node.zone, self.node.addresses)
